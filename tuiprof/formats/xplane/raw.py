"""One event of an XSpace as text, with all that the file says of it."""

from __future__ import annotations

import json
from typing import Any

from tuiprof.formats.xplane.protobuf.wire import Damaged
from tuiprof.formats.xplane.space import Space


class RawEvents:
    """Shows an event with all its stats, decoded again from its bytes."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def text(self, ordinal: int) -> str:
        """Return the event and what it shares with others of its name, as JSON."""
        try:
            return json.dumps(self._event(ordinal), default=_unprintable, ensure_ascii=False, indent=1)
        except Damaged as damage:
            return f"this event cannot be shown: {damage}"

    def _event(self, ordinal: int) -> dict[str, Any]:
        space = self._space
        line = space.lines[int(space.line[ordinal])]
        plane = space.planes[line.plane]
        metadata = plane.events.get(int(space.metadata[ordinal]))
        event: dict[str, Any] = {
            "plane": plane.name,
            "line": line.name,
            "line_timestamp_ns": line.timestamp_ns,
            "name": metadata.name if metadata else None,
            "offset_ps": int(space.offset_ps[ordinal]),
            "duration_ps": int(space.duration_ps[ordinal]),
            "stats": space.event_values(ordinal),
        }
        if ordinal in space.occurrences:
            event["num_occurrences"] = space.occurrences[ordinal]
        if metadata is not None:
            event["display_name"] = metadata.display_name
            event["metadata_stats"] = space.metadata_values(plane, metadata)
        return event


def _unprintable(value: Any) -> str:
    return f"<{len(value)} bytes>"
