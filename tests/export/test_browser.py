"""The example for browsers certifies as Python does; it needs chromium, and onnxruntime-web of npm."""

import functools
import http.server
import json
import os
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from helpers.browser import chromium, needs_browser
from helpers.digits_net import digits, trained
from safeset.export.to_onnx import export_onnx

EXAMPLE = Path(__file__).parents[2] / "examples" / "browser"
PACKAGES = Path(os.environ.get("SAFESET_NODE_MODULES", EXAMPLE / "node_modules"))
TYPES = {".html": "text/html", ".mjs": "text/javascript", ".wasm": "application/wasm", "": "text/plain"}


class Files(http.server.SimpleHTTPRequestHandler):
    extensions_map = TYPES

    def log_message(self, *given):
        pass


@contextmanager
def serving_folder(folder):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@needs_browser
@pytest.mark.skipif(
    not (PACKAGES / "onnxruntime-web").is_dir(),
    reason="needs onnxruntime-web: npm install in examples/browser, or $SAFESET_NODE_MODULES",
)
def test_the_page_certifies_as_python_does(tmp_path):
    net, _ = trained()
    shutil.copy(EXAMPLE / "index.html", tmp_path)
    (tmp_path / "node_modules").symlink_to(PACKAGES.resolve())
    says = export_onnx(net, tmp_path / "model.onnx", guarantee="rt3")
    (tmp_path / "model.json").write_text(json.dumps(says))
    x = digits()[1][0][:6].double()
    certificate = net.certify(x, epsilon=0.3, guarantee="rt3")
    with serving_folder(tmp_path) as address, chromium() as browser:
        page = browser.new_page()
        page.goto(address)
        page.wait_for_selector("#certify:not([disabled])", timeout=60_000)
        assert "exact arithmetic" in page.inner_text("#covers")
        for place, record in enumerate(certificate.records()):
            page.fill("#x", " ".join(map(repr, x[place].flatten().tolist())))
            page.fill("#epsilon", "0.3")
            page.click("#certify")
            page.wait_for_function("document.getElementById('answer').textContent !== ''")
            shown = page.inner_text("#answer")
            optional = f" (may also include {', '.join(map(str, sorted(record['optional'])))})"
            core = "{" + ", ".join(map(str, sorted(record["core"]))) + "}"
            wanted = core + (optional if record["optional"] else "") if record["certified"] else "⊥ no certificate"
            assert shown.startswith(wanted)
            windows = np.array(page.evaluate("window.windows")).reshape(3, 3)
            assert np.abs(windows - certificate.windows[place].numpy()).max() <= 1e-12
            page.evaluate("document.getElementById('answer').textContent = ''")
        page.fill("#epsilon", "-1")
        page.click("#certify")
        page.wait_for_function("document.getElementById('answer').textContent.startsWith('Expected ε')")
