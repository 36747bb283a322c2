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
            given_away = certificate.windows[place].numpy() - windows  # the rounding error, once more
            assert given_away.min() >= 0
            assert given_away.max() <= 1e-10
            page.evaluate("document.getElementById('answer').textContent = ''")
        page.fill("#epsilon", "-1")
        page.click("#certify")
        page.wait_for_function("document.getElementById('answer').textContent.startsWith('Expected ε')")


# onnxruntime-web as far as the page asks it: what is tested is the page.
STUB = """
export const env = { wasm: {} };
export class Tensor { constructor(type, data) { this.data = data; } }
export const InferenceSession = { create: async () => ({ run: async () => ({
  certified: { data: [1] }, core: { data: [1, 0] }, optional: { data: [0, 1] }, windows: { data: [] } }) }) };
"""
SAYS = {"class_names": ["cat", "dog"], "precision": "float64", "input_shape": [2], "epsilon": 0.5, "covers": "all"}


@needs_browser
@pytest.mark.parametrize("missing", ["node_modules", "model.json", "model.onnx", None])
def test_the_page_says_what_lies_not_beside_it_and_fits_a_phone(tmp_path, missing):
    shutil.copy(EXAMPLE / "index.html", tmp_path)
    stub = tmp_path / "node_modules" / "onnxruntime-web" / "dist" / "ort.wasm.min.mjs"
    stub.parent.mkdir(parents=True)
    stub.write_text(STUB)
    (tmp_path / "model.json").write_text(json.dumps(SAYS))
    (tmp_path / "model.onnx").write_bytes(b"")
    if missing is not None:
        (tmp_path / missing).rename(tmp_path / "elsewhere")
    with serving_folder(tmp_path) as address, chromium() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.goto(address)
        if missing is not None:
            page.wait_for_function("document.getElementById('answer').textContent.startsWith('Expected ')")
            said = page.inner_text("#answer")
            assert said.startswith(f"Expected {missing} beside this page")
            assert "README.md says how" in said
            return
        page.wait_for_selector("#certify:not([disabled])")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.fill("#x", "1, cat")
        page.click("#certify")
        page.wait_for_function("document.getElementById('answer').textContent.includes('1 of them not finite')")
        page.fill("#x", "1, 2")
        page.click("#certify")
        page.wait_for_function("document.getElementById('answer').textContent.startsWith('{cat} (may also')")
