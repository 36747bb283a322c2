"""A page about every address, made from the OpenAPI description; it loads nothing from elsewhere."""

import html
import json
import re
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse

SAFE = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "code,pre{font:14px/1.4 ui-monospace,monospace}pre{overflow:auto;padding:.75rem;border:1px solid #8886;"
    "border-radius:6px}h2{margin-top:2rem;border-top:1px solid #8886;padding-top:1rem}"
)


def documentation_router(app: FastAPI) -> APIRouter:
    """The address /docs; /openapi.json has the same for programs."""
    router = APIRouter()

    @router.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()), headers=SAFE)

    return router


def docs_page(description: dict[str, Any]) -> str:
    """The description as a page."""
    about, named = description["info"], description.get("components", {}).get("schemas", {})
    parts = [f"<h1>{_text(about['title'])} {_text(about['version'])}</h1><p>{_words(about.get('description', ''))}</p>"]
    parts.append('<p>For programs: <a href="openapi.json">openapi.json</a>.</p>')
    for path, methods in description["paths"].items():
        for method, one in methods.items():
            parts.append(f"<h2><code>{method.upper()} {_text(path)}</code></h2>")
            parts.append(f"<p>{_words(one.get('description') or one.get('summary', ''))}</p>")
            for kind, content in one.get("requestBody", {}).get("content", {}).items():
                parts.append(f"<p>Takes <code>{_text(kind)}</code>:</p>{_schema(content['schema'], named)}")
            for status, answer in one.get("responses", {}).items():
                parts.append(f"<p><code>{_text(status)}</code> {_words(answer.get('description', ''))}</p>")
                if status == "200":
                    parts += [_schema(content["schema"], named) for content in answer.get("content", {}).values()]
    start = '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
    start += f'content="width=device-width"><title>safeset: HTTP</title><style>{STYLE}</style></head><body><main>'
    return f"{start}{''.join(parts)}</main></body></html>"


def _schema(schema: dict[str, Any], named: dict[str, Any]) -> str:
    schema = named.get(schema.get("$ref", "").rpartition("/")[2], schema)
    return f"<details><summary>schema</summary><pre>{_text(json.dumps(schema, indent=1))}</pre></details>"


def _words(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", _text(text))


def _text(text: object) -> str:
    return html.escape(str(text))
