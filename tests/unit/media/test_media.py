"""Previews of real pictures, videos, sound, PDFs and texts, of broken ones and of hostile ones."""

from __future__ import annotations

import hashlib
import io
import struct
import wave
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import av
import pypdfium2 as pdfium  # type: ignore[import-untyped]  # it has no types
import pytest
from PIL import Image

from proto.errors import Forbidden, LinckiaError, OperationError, Quarantined, Unavailable
from proto.host import extras
from proto.ops.decode import (
    DecodeCode,
    Decoded,
    DecodedText,
    DecodeFile,
    DecodeFormats,
    DecodeText,
    Formats,
    ParsedCode,
)
from proto.ops.media import (
    MediaArtifactParams,
    MediaBytes,
    MediaContent,
    MediaInspect,
    MediaInspection,
    MediaKind,
)
from services.decode import main as decode
from services.decode.main import open_service as open_decode
from services.media.main import open_service as open_media
from services.runtime.handlers import Context, Environment, Handlers
from tests.in_process import Bench, services_in_process

SETTINGS: Mapping[str, dict[str, Any]] = {"decode": {"memory_limit_bytes": 0}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@asynccontextmanager
async def media(folder: Path, root: Path) -> AsyncIterator[Bench]:
    services = {"decode": open_decode, "media": open_media}
    async with services_in_process(services, folder, roots=[root], settings=SETTINGS) as bench:
        yield bench


async def inspected(tmp_path: Path, root: Path, file: Path) -> MediaInspection:
    async with media(tmp_path / "data", root) as bench:
        found = await bench.call(MediaInspect(path=str(file)))
        for artifact in found.artifacts:
            content = await bench.call(MediaArtifactParams(hash=str(found.hash), name=artifact.name))
            with Image.open(io.BytesIO(content.data)) as picture:
                assert (picture.format, picture.size) == ("JPEG", (artifact.width, artifact.height))
                assert max(picture.size) <= 320
            assert (await bench.call(MediaContent(path=artifact.path))).data == content.data
        assert await bench.call(MediaInspect(path=str(file))) == found
        return found


def video(path: Path, seconds: int = 4, size: tuple[int, int] = (400, 200)) -> Path:
    """Red for the first half, blue for the second."""
    with av.open(str(path), "w") as out:
        stream = out.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for number in range(seconds * 10):
            image = Image.new("RGB", size, "red" if number < seconds * 5 else "blue")
            for packet in stream.encode(av.VideoFrame.from_image(image)):  # type: ignore[no-untyped-call]  # PyAV
                out.mux(packet)
        for packet in stream.encode():
            out.mux(packet)
    return path


async def test_picture_has_dimensions_exif_and_an_upright_thumbnail(tmp_path: Path, root: Path) -> None:
    image = Image.new("RGB", (1000, 500), "green")
    exif = image.getexif()
    exif[0x0110] = "Camera"
    exif[0x0112] = 6
    image.save(root / "a.jpg", exif=exif)
    found = await inspected(tmp_path, root, root / "a.jpg")
    assert (found.kind, found.mime_type, found.problem) == (MediaKind.IMAGE, "image/jpeg", None)
    assert (found.metadata["width"], found.metadata["height"]) == (1000, 500)
    assert found.metadata["exif"]["Model"] == "Camera"
    assert found.hash == hashlib.sha256((root / "a.jpg").read_bytes()).hexdigest()
    (thumbnail,) = found.artifacts
    assert (thumbnail.width, thumbnail.height) == (160, 320)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16", "F"])
async def test_picture_of_any_mode_gets_a_thumbnail(tmp_path: Path, root: Path, mode: str) -> None:
    file = root / ("a.tif" if mode in ("CMYK", "F") else "a.png")
    Image.new(mode, (50, 20)).save(file)
    (thumbnail,) = (await inspected(tmp_path, root, file)).artifacts
    assert (thumbnail.width, thumbnail.height) == (50, 20)


async def test_truncated_picture_still_inspects(tmp_path: Path, root: Path) -> None:
    Image.effect_noise((400, 400), 50).save(root / "a.png")
    data = (root / "a.png").read_bytes()
    (root / "a.png").write_bytes(data[: len(data) // 2])
    found = await inspected(tmp_path, root, root / "a.png")
    assert (found.metadata["width"], found.artifacts) == (400, [])
    assert found.problem is not None


async def test_bomb_of_pixels_is_refused_and_said_to_be_one(tmp_path: Path, root: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(1_000_000))
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    (root / "bomb.png").write_bytes(png)
    found = await inspected(tmp_path, root, root / "bomb.png")
    assert (found.metadata["width"], found.artifacts) == (60_000, [])
    assert "60000 by 60000 pixels" in str(found.problem)


async def test_video_has_a_poster_and_five_frames_spread_over_its_length(tmp_path: Path, root: Path) -> None:
    found = await inspected(tmp_path, root, video(root / "a.mp4"))
    assert (found.kind, found.problem) == (MediaKind.VIDEO, None)
    told = found.metadata
    assert (told["width"], told["height"], told["video_codec"], told["duration_s"]) == (400, 200, "mpeg4", 4.0)
    assert [artifact.name for artifact in found.artifacts] == [
        "thumb.jpg", "poster.jpg", *(f"timeline_{n:02}.jpg" for n in range(5))
    ]  # fmt: skip
    assert [artifact.metadata["time_s"] for artifact in found.artifacts[2:]] == [0.4, 1.2, 2.0, 2.8, 3.6]
    async with media(tmp_path / "data", root) as bench:
        reds = []
        for artifact in (found.artifacts[2], found.artifacts[6]):
            content = await bench.call(MediaArtifactParams(hash=str(found.hash), name=artifact.name))
            with Image.open(io.BytesIO(content.data)) as picture:
                pixel = picture.getpixel((100, 50))
                assert isinstance(pixel, tuple)
                reds.append(pixel[0])
    assert reds[0] > 200
    assert reds[1] < 60


async def test_without_pyav_a_video_names_the_command_that_adds_it_and_is_decoded_after_that(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = video(root / "a.mp4")
    async with media(tmp_path / "data", root) as bench:
        with monkeypatch.context() as without:
            without.delitem(decode._DECODERS, MediaKind.VIDEO)
            found = await bench.call(MediaInspect(path=str(file)))
            assert (found.kind, found.artifacts) == (MediaKind.VIDEO, [])
            assert extras.command_for(extras.VIDEO) in str(found.problem)
        found = await bench.call(MediaInspect(path=str(file)))
        assert found.problem is None
        assert found.artifacts


@pytest.mark.parametrize("share", [0.2, 0.9])
async def test_truncated_video_is_an_error_of_one_file(tmp_path: Path, root: Path, share: float) -> None:
    data = video(root / "a.mp4").read_bytes()
    (root / "a.mp4").write_bytes(data[: int(len(data) * share)])
    found = await inspected(tmp_path, root, root / "a.mp4")
    assert found.kind is MediaKind.VIDEO
    assert found.problem is not None


async def test_playlist_is_a_text_and_opens_nothing(tmp_path: Path, root: Path) -> None:
    (root / "a.mp4").write_text("#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n")
    found = await inspected(tmp_path, root, root / "a.mp4")
    assert (found.kind, found.artifacts) == (MediaKind.TEXT, [])


async def test_sound_has_length_and_codec(tmp_path: Path, root: Path) -> None:
    with wave.open(str(root / "a.wav"), "wb") as sound:
        sound.setparams((2, 2, 8000, 0, "NONE", "NONE"))
        sound.writeframes(bytes(2 * 2 * 8000 * 3))
    found = await inspected(tmp_path, root, root / "a.wav")
    assert (found.kind, found.problem) == (MediaKind.AUDIO, None)
    told = found.metadata
    assert (told["duration_s"], told["audio_codec"], told["sample_rate"], told["channels"]) == (
        3.0,
        "pcm_s16le",
        8000,
        2,
    )


async def test_pdf_has_its_pages_counted_and_its_first_page_drawn(tmp_path: Path, root: Path) -> None:
    document = pdfium.PdfDocument.new()
    for _ in range(3):
        document.new_page(200, 400)
    document.save(str(root / "a.pdf"))
    document.close()
    found = await inspected(tmp_path, root, root / "a.pdf")
    assert (found.kind, found.problem, found.metadata["pages"]) == (MediaKind.PDF, None, 3)
    (thumbnail,) = found.artifacts
    assert (thumbnail.width, thumbnail.height) == (160, 320)


@pytest.mark.parametrize("name", ["a.pdf", "a.jpg", "a.mp4", "a.mp3", "a.gif"])
async def test_nonsense_under_a_good_head_is_an_error_of_one_file(tmp_path: Path, root: Path, name: str) -> None:
    heads = {"a.pdf": b"%PDF-1.7\n", "a.jpg": b"\xff\xd8\xff\xe0", "a.mp4": b"\0\0\0\x18ftypmp42", "a.mp3": b"ID3",
             "a.gif": b"GIF89a"}  # fmt: skip
    (root / name).write_bytes(heads[name] + hashlib.sha512(name.encode()).digest() * 500)
    found = await inspected(tmp_path, root, root / name)
    assert found.artifacts == []
    assert found.problem is not None


async def test_text_is_counted(tmp_path: Path, root: Path) -> None:
    (root / "a.txt").write_text("one two\nthrée " + "word " * 400_000 + "\nlast")
    found = await inspected(tmp_path, root, root / "a.txt")
    text = (root / "a.txt").read_text()
    assert found.kind is MediaKind.TEXT
    assert (found.metadata["lines"], found.metadata["words"], found.metadata["characters"]) == (
        3, len(text.split()), len(text),
    )  # fmt: skip


async def test_same_content_elsewhere_is_not_decoded_again(tmp_path: Path, root: Path) -> None:
    Image.new("RGB", (40, 40)).save(root / "a.png")
    async with media(tmp_path / "data", root) as bench:
        found = await bench.call(MediaInspect(path=str(root / "a.png")))
        await bench.stop("decode")
        (root / "b.png").write_bytes((root / "a.png").read_bytes())
        again = await bench.call(MediaInspect(path=str(root / "b.png")))
        assert (again.hash, again.artifacts) == (found.hash, found.artifacts)


async def test_only_what_is_below_the_roots_is_read(tmp_path: Path, root: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "rooted").mkdir()
    (tmp_path / "rooted/x.txt").write_text("secret")
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    (root / "folder").mkdir()
    async with media(tmp_path / "data", root) as bench:
        for path in (tmp_path / "secret.txt", root / "link.txt", root / "../secret.txt", tmp_path / "rooted/x.txt",
                     Path("/etc/passwd"), Path("relative.txt"), tmp_path / "not-there"):  # fmt: skip
            with pytest.raises(Forbidden):
                await bench.call(MediaContent(path=str(path)))
            with pytest.raises(Forbidden):
                await bench.call(MediaInspect(path=str(path)))
        for path in (root / "folder", root / "not-there"):
            with pytest.raises(OperationError):
                await bench.call(MediaContent(path=str(path)))


class Deadly:
    """A decoder that dies of its input, as the router reports it, or is away; and the results it had before."""

    def __init__(self) -> None:
        self.calls = 0
        self.read = b""
        self.failure: LinckiaError = Quarantined(
            "service decode died (killed by SIGSEGV) while serving decode_file, for the second time; it is refused"
        )

    @asynccontextmanager
    async def open(self, env: Environment) -> AsyncIterator[Handlers]:
        handlers = Handlers()

        @handlers.handle(DecodeFile)
        async def decode(params: DecodeFile, ctx: Context) -> Decoded:
            self.calls += 1
            self.read = (await ctx.call(MediaBytes(hash=params.hash, offset=1, limit=3))).data
            with pytest.raises(OperationError, match="not being decoded"):
                await ctx.call(MediaBytes(hash="0" * 64, offset=0, limit=100))
            raise self.failure

        @handlers.handle(DecodeText)
        async def text(params: DecodeText, ctx: Context) -> DecodedText:
            raise self.failure

        @handlers.handle(DecodeCode)
        async def code(params: DecodeCode, ctx: Context) -> ParsedCode:
            raise self.failure

        @handlers.handle(DecodeFormats)
        async def formats(params: DecodeFormats, ctx: Context) -> Formats:
            return Formats(pictures=[], containers=[], documents=[])

        yield handlers


async def test_content_that_crashes_its_decoder_twice_is_not_decoded_again(tmp_path: Path, root: Path) -> None:
    Image.new("RGB", (40, 40)).save(root / "a.png")
    deadly = Deadly()
    services = {"decode": deadly.open, "media": open_media}
    async with services_in_process(services, tmp_path / "data", roots=[root]) as bench:
        for _ in range(2):
            found = await bench.call(MediaInspect(path=str(root / "a.png")))
            assert "died (killed by SIGSEGV) of it, twice" in str(found.problem)
            assert (deadly.calls, deadly.read) == (1, b"PNG")
            with pytest.raises(OperationError, match="not being decoded"):
                await bench.call(MediaBytes(hash=str(found.hash), offset=0, limit=100))
            await bench.stop("media")
            await bench.start("media")


async def test_an_unavailable_decoder_is_not_blamed_on_the_file(tmp_path: Path, root: Path) -> None:
    Image.new("RGB", (40, 40)).save(root / "a.png")
    deadly = Deadly()
    deadly.failure = Unavailable("it is away")
    services = {"decode": deadly.open, "media": open_media}
    async with services_in_process(services, tmp_path / "data", roots=[root]) as bench:
        for _ in range(4):
            with pytest.raises(Unavailable):
                await bench.call(MediaInspect(path=str(root / "a.png")))
        assert deadly.calls == 4
