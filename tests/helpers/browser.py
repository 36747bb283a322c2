"""A server in a thread, and a browser that looks at it."""

import shutil
import threading
from contextlib import contextmanager

import pytest
import uvicorn

needs_browser = pytest.mark.skipif(shutil.which("chromium") is None, reason="a browser shows the page")


@contextmanager
def served(app):
    """Serve an app on this machine; gives its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    server.config.load()
    sock = server.config.bind_socket()
    sock.listen()  # who asks before the thread has begun, waits
    thread = threading.Thread(target=server.run, args=([sock],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        sock.close()


@contextmanager
def chromium():
    """The system's browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
