"""A run over HTTP: for programs, and for people the page at `/`."""
