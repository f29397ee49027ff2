"""Decodes video and sound with FFmpeg's libraries (PyAV): metadata, a poster and five frames.

Containers are listed explicitly and read through a Python file: FFmpeg opens nothing by itself, neither what a playlist
in the file names nor anything on a network.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import av
from av.container import InputContainer
from av.error import FFmpegError
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from PIL import Image

from proto.ops.media import POSTER, THUMBNAIL, TIMELINE
from services.decode.results import SIDE, NotDecoded, Result, check_pixels, picture, plain

FRAMES: Final = 5
SOFT_LIMIT_S: Final = 15.0
"""Time after which no further frames are searched for."""

CONTAINERS: Final = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,mpegts,mpeg,mpegvideo,ogg,mp3,flac,wav,w64,aac,asf,aiff,amr,ape,"
    "caf,wv"
)
_OPTIONS: Final = {"format_whitelist": CONTAINERS, "protocol_whitelist": "", "probesize": "5000000"}


def video(file: BinaryIO, result: Result) -> None:
    """Extract dimensions, duration, codecs and tags; a poster, and five frames spread over the length."""
    until = time.monotonic() + SOFT_LIMIT_S
    with _opened(file) as container:
        result.metadata.update(_metadata(container))
        streams = [stream for stream in container.streams.video if not _is_cover(stream)]
        if not streams:
            raise NotDecoded("it contains no video")
        streams[0].thread_type = "NONE"
        try:
            check_pixels(streams[0].codec_context.width, streams[0].codec_context.height)
            _frames(container, streams[0], result, until)
        except (FFmpegError, NotDecoded, ValueError) as error:
            raise NotDecoded(f"cannot decode its frames: {str(error)[:300] or type(error).__name__}") from None


def audio(file: BinaryIO, result: Result) -> None:
    """Extract duration, codec and tags, and the cover, if any, as a thumbnail."""
    with _opened(file) as container:
        result.metadata.update(_metadata(container))
        if container.streams.video:
            cover = container.streams.video[0]
            check_pixels(cover.codec_context.width, cover.codec_context.height)
            frame = next(container.decode(cover), None)
            if frame is None:
                raise NotDecoded("cannot decode its cover")
            result.pictures.append(picture("thumb.jpg", THUMBNAIL, _image(frame)))


@contextlib.contextmanager
def _opened(file: BinaryIO) -> Iterator[InputContainer]:
    try:
        container = av.open(file, "r", options=dict(_OPTIONS), metadata_errors="replace")
    except FFmpegError as error:
        raise NotDecoded(f"not a readable video or sound file: {error.strerror}") from None
    with container:
        yield container


def _metadata(container: InputContainer) -> dict[str, Any]:
    # Metadata differs between formats, and is passed on as JSON.
    metadata: dict[str, Any] = {"container": container.format.name}
    if container.duration is not None and container.duration > 0:
        metadata["duration_s"] = round(container.duration / 1_000_000, 3)
    if container.bit_rate:
        metadata["bit_rate"] = int(container.bit_rate)
    moving = [stream for stream in container.streams.video if not _is_cover(stream)]
    if moving:
        context = moving[0].codec_context
        rate = moving[0].average_rate
        metadata |= {"width": context.width, "height": context.height, "video_codec": context.name}
        metadata |= {"frame_rate": round(float(rate), 3)} if rate else {}
    if container.streams.audio:
        sound = container.streams.audio[0].codec_context
        metadata |= {"audio_codec": sound.name, "sample_rate": sound.sample_rate, "channels": sound.channels}
    tags = {key: plain(value) for key, value in container.metadata.items()}
    if tags:
        metadata["tags"] = plain(tags)
    return metadata


def _is_cover(stream: VideoStream) -> bool:
    return "attached_pic" in str(stream.disposition).lower()


def _frames(container: InputContainer, stream: VideoStream, result: Result, until: float) -> None:
    first = next(container.decode(stream), None)
    if first is None:
        raise NotDecoded("it contains no frames")
    length = (container.duration or 0) / 1_000_000
    frames = []
    for number in range(FRAMES if length > 0 else 0):
        if time.monotonic() > until:
            result.problem = "decoding is slow; some frames are left out"
            break
        at = length * (number + 0.5) / FRAMES
        frame = _frame_at(container, stream, at, until)
        if frame is not None:
            frames.append((number, at, frame))
    # The very first frame is usually black.
    _, at, poster = frames[0] if frames else (0, 0.0, first)
    image = _image(poster)
    result.pictures.append(picture("thumb.jpg", THUMBNAIL, image.copy(), time_s=round(at, 3)))
    result.pictures.append(picture("poster.jpg", POSTER, image, time_s=round(at, 3)))
    for number, at, frame in frames:
        result.pictures.append(
            picture(f"timeline_{number:02}.jpg", TIMELINE, _image(frame), frame=number, time_s=round(at, 3))
        )


def _frame_at(container: InputContainer, stream: VideoStream, at: float, until: float) -> VideoFrame | None:
    """Return the last frame before a time, or an earlier one if decoding up to it takes too long."""
    start = (container.start_time or 0) / 1_000_000
    container.seek(int((at + start) * 1_000_000))
    found = None
    for frame in container.decode(stream):
        found = frame
        if frame.time is None or frame.time >= at + start or time.monotonic() > until:
            break
    return found


def _image(frame: VideoFrame) -> Image.Image:
    """Convert a frame to an image, scaled down and rotated for display."""
    check_pixels(frame.width, frame.height)
    scale = min(1.0, 2 * SIDE / max(frame.width, frame.height))
    size = max(1, round(frame.width * scale)), max(1, round(frame.height * scale))
    image: Image.Image = frame.reformat(width=size[0], height=size[1], format="rgb24").to_image()  # type: ignore[no-untyped-call]  # typed, but for this
    # Counter-clockwise, as in Pillow.
    return image.rotate(frame.rotation, expand=True) if frame.rotation else image
