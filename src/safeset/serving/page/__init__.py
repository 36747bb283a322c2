"""The page at `/`: an input, its certificate, a change of it, and an attack, before one's eyes.

The browser draws and compares nothing: every answer, number and sentence comes from `answer.py` and `attack.py`.
"""
