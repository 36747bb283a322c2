"""Files as users have them, and one that nobody should open."""

import os
import struct
import zlib

from PIL import Image


def paint(path, size=(8, 8), colour=(255, 0, 0), mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path, **options)


def photos(root, size=(8, 8), count=10):
    for name, colour in (("cat", (255, 0, 0)), ("dog", (0, 255, 0))):
        for number in range(count):
            paint(root / name / f"{number}.png", size, colour)
    return root


def rows(path, header, count=60):
    lines = [",".join(header)]
    for place in range(count):
        cells = {"a": place % 2, "b": place / 7, "c": 5, "y": "xy"[place % 2]}
        lines.append(",".join(str(cells[name]) for name in header))
    path.write_text("\n".join(lines) + "\n")
    return path


def png(width, height, depth, colour, data, *chunks):
    """A PNG of any kind, also of those that pillow does not write."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(data)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


class Trap:
    """Unpickling it makes a directory."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


NNET = """// a comment
1,2,2,2,
2,2,
0,
-1.0,-1.0,
1.0,1.0,
0.0,0.0,7.0,
2.0,4.0,9.0,
1.0,0.0,
0.0,-1.0,
0.5,
-0.5,
"""


CSV = "height,width,kind\n" + "".join(f"{i},{10 * i},{'ab'[i % 2]}\n" for i in range(20))
