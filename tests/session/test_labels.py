"""Tags and notes of a session."""

from __future__ import annotations

from pathlib import Path

import pytest
from session_logs import new_session

from tuiprof.errors import SessionError, UsageProblem
from tuiprof.session.store.meta import LABELS_FILE, Labels, add_note, read_labels, set_tags


def test_tags_and_notes_are_kept_apart_from_what_was_recorded(tmp_path: Path) -> None:
    session = new_session(tmp_path)
    before = (session.path / "session.json").read_bytes()
    assert read_labels(session.path) == Labels()
    set_tags(session.path, "#baseline, h200  baseline")
    add_note(session.path, " the loader was on NFS ", step=12)
    labels = add_note(session.path, "second")
    assert labels == read_labels(session.path)
    assert labels.tags == ("baseline", "h200")
    assert [note.text for note in labels.notes] == ["the loader was on NFS", "second"]
    assert labels.notes[0].step == 12
    assert "#h200" in labels.words
    assert "NFS" in labels.words
    assert set_tags(session.path, "").tags == ()
    assert (session.path / "session.json").read_bytes() == before


def test_what_is_no_tag_or_note_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    session = new_session(tmp_path)
    set_tags(session.path, "kept")
    with pytest.raises(UsageProblem, match="is not a valid tag"):
        set_tags(session.path, "a/b")
    with pytest.raises(UsageProblem):
        add_note(session.path, "  ")
    assert read_labels(session.path).tags == ("kept",)


def test_a_damaged_file_hides_nothing_else(tmp_path: Path) -> None:
    session = new_session(tmp_path)
    (session.path / LABELS_FILE).write_text("{")
    assert read_labels(session.path) == Labels()
    with pytest.raises(SessionError, match="is damaged — repair it"):
        add_note(session.path, "would take the place of what can still be mended")
    assert (session.path / LABELS_FILE).read_text() == "{"
