"""Names of classes and files that try to become part of a page."""

HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "a & 'b' <!-- ]]> ${c} \\u003c",
    "right-to-left",
)
TURNED = "x\u202ey"  # turns the direction of writing
