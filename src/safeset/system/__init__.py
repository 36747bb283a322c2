"""Files, processes, memory and provenance: what the operating system gives, made safe.

Nothing here knows of certificates.
"""
