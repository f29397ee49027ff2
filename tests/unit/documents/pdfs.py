"""Small PDFs: lines in any script, form fields and notes."""

from __future__ import annotations

from collections.abc import Sequence


def _string(text: str) -> str:
    return f"<{(chr(0xFEFF) + text).encode('utf-16-be').hex()}>"


def pdf_of(*pages: Sequence[str], notes: Sequence[str] = (), fields: Sequence[str] = ()) -> bytes:
    """Pages of lines.  `notes` and `fields` are dictionaries of annotations on the first page, without their braces, in
    which `{…}` of a text is written by `said`; `fields` are in the form as well."""
    # One byte each, which the font maps to any script.
    signs = sorted({sign for lines in pages for line in lines for sign in line})
    codes = {sign: 33 + index if index < 220 else 0 for index, sign in enumerate(signs)}
    cmap = (
        "/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapType 2 def 1 begincodespacerange <00> <FF>"
        " endcodespacerange "
        + "".join(
            f"1 beginbfchar <{code:02x}> <{sign.encode('utf-16-be').hex()}> endbfchar " for sign, code in codes.items()
        )
        + "endcmap end end"
    )
    widths = " ".join(["600"] * 223)
    noted = [*fields, *notes]
    first = 5 + 2 * len(pages)
    own = [f"{first + index} 0 R" for index in range(len(noted))]
    kids = " ".join(f"{5 + 2 * index} 0 R" for index in range(len(pages)))
    objects = [
        f"<< /Type /Catalog /Pages 2 0 R /AcroForm << /Fields [{' '.join(own[: len(fields)])}] >> >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Courier /FirstChar 33 /LastChar 255"
        f" /Widths [{widths}] /ToUnicode 4 0 R >>",
        f"<< /Length {len(cmap)} >>\nstream\n{cmap}\nendstream",
    ]
    for index, lines in enumerate(pages):
        shown = " ".join(f"<{bytes(codes[sign] for sign in line).hex()}> Tj 0 -14 Td" for line in lines)
        stream = f"BT /F1 10 Tf 40 740 Td {shown} ET"
        annots = f"/Annots [{' '.join(own)}]" if index == 0 else ""
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {6 + 2 * index} 0 R {annots}"
            " /Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    objects += [f"<< /Type /Annot /Rect [100 100 200 120] {one} >>" for one in noted]
    data = bytearray(b"%PDF-1.7\n")
    places: list[int] = []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += f"{number} 0 obj\n{body}\nendobj\n".encode()
    start = len(data)
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    data += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}".encode()
    data += f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n".encode()
    return bytes(data)


def note(kind: str, text: str, author: str = "") -> str:
    return f"/Subtype /{kind} /Contents {_string(text)}" + (f" /T {_string(author)}" if author else "")


def field(name: str, more: str) -> str:
    return f"/Subtype /Widget /T {_string(name)} {more}"


def entered(text: str, flags: int = 0) -> str:
    return f"/FT /Tx /Ff {flags} /V {_string(text)}"


def chosen(options: Sequence[str], *taken: str, flags: int = 0) -> str:
    listed = " ".join(f"[{_string(str(index))} {_string(one)}]" for index, one in enumerate(options))
    values = " ".join(_string(str(options.index(one))) for one in taken)
    return f"/FT /Ch /Ff {flags} /Opt [{listed}] /V {f'[{values}]' if len(taken) != 1 else values}"


def box(value: str, flags: int = 0, export: str = "Yes") -> str:
    return f"/FT /Btn /Ff {flags} /V /{value} /AS /{value} /AP << /N << /{export} << >> /Off << >> >> >>"
