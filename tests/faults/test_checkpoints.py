"""Damaged checkpoints are detected; the run resumes from the one before with the same bits."""

import errno
import json
import shutil

import pytest

from nystromformer_jax.training import CannotWrite, CheckpointDamaged, checkpoint, integrity
from tests.training import tiny


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Trains thirty steps; steps 25 and 30 remain, and the best step that each of them names."""
    workdir = tmp_path_factory.mktemp("finished")
    tiny.train(workdir, tiny.SAVES_OFTEN)
    return workdir


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def hashed_files(step_folder):
    names = json.loads((step_folder / "hashes.json").read_text())["sha256"]
    return [step_folder / "hashes.json", *(step_folder / name for name in names)]


def flip(file, place=None):
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if place is None else place] ^= 1
    file.write_bytes(content)


def drop_last_byte(file):
    file.write_bytes(file.read_bytes()[:-1])


def empty(file):
    file.write_bytes(b"")


def remove(file):
    file.unlink()


def snapshot(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def largest_of_params(step_folder):
    files = step_folder.glob("params/ocdbt.process_0/d/*")
    return max(files, key=lambda file: file.stat().st_size)


def test_resumes_from_the_checkpoint_before_a_damaged_one_with_the_same_bits(finished, run, caplog):
    damaged = largest_of_params(run / "checkpoints/30")
    flip(damaged)
    tiny.train(run, tiny.SAVES_OFTEN)
    (said,) = (record.getMessage() for record in caplog.records if "damaged" in record.msg)
    assert said.startswith(f"The checkpoint of step 30 is damaged ({damaged} is ")
    assert "resuming from step 25" in said
    assert "\n" not in said
    assert (run / "checkpoints/30.damaged").is_dir()
    tiny.assert_same_run(finished, run)


@pytest.mark.slow_except("flip")
@pytest.mark.parametrize("damage", [flip, drop_last_byte, empty, remove])
def test_detects_damage_to_any_file_of_a_step(run, damage, caplog):
    checkpoints = run / "checkpoints"
    kept = shutil.copytree(checkpoints / "30", run / "kept")
    files = [file.relative_to(checkpoints / "30") for file in hashed_files(checkpoints / "30")]
    assert len(files) > 20
    for name in files:
        if damage is drop_last_byte and name.name == integrity.HASHES:
            continue  # its last byte is the end of its last line
        damage(checkpoints / "30" / name)
        caplog.clear()
        integrity.quarantine_corrupt(checkpoints)
        assert f"step 30 is damaged ({checkpoints / '30'}/" in caplog.text, name
        shutil.rmtree(checkpoints / "30.damaged")
        shutil.copytree(kept, checkpoints / "30")
    caplog.clear()
    integrity.quarantine_corrupt(checkpoints)
    assert not caplog.records


def test_detects_a_changed_byte_anywhere_in_the_hashes(run):
    hashes = run / "checkpoints/30/hashes.json"
    content = hashes.read_bytes()
    for place in range(0, len(content) - 1, 37):
        if content[place : place + 1].isspace():
            continue  # the white space of JSON may differ
        flip(hashes, place)
        with pytest.raises(CheckpointDamaged, match="step 30"):
            integrity.require_intact(run / "checkpoints", 30)
        hashes.write_bytes(content)


def test_files_without_hashes_may_be_missing(finished, run):
    """Orbax writes two files after the hashes are made; a step without them is intact."""
    for name in ("_CHECKPOINT_METADATA", "commit_success.txt"):
        (run / "checkpoints/30" / name).unlink()
    tiny.train(run, tiny.SAVES_OFTEN)
    assert not (run / "checkpoints/30.damaged").exists()
    tiny.assert_same_run(finished, run)


def test_raises_and_changes_nothing_if_no_checkpoint_is_intact(run):
    checkpoints = run / "checkpoints"
    for step in checkpoints.iterdir():
        flip(largest_of_params(step))
    before = snapshot(run)
    with pytest.raises(CheckpointDamaged) as refused:
        tiny.train(run, tiny.SAVES_OFTEN)
    assert str(refused.value).startswith(f"No checkpoint in {checkpoints} is intact (step 30: ")
    assert "step 25: " in str(refused.value)
    assert "restore one from a copy, or train again in another --workdir." in str(refused.value)
    assert "\n" not in str(refused.value)
    assert snapshot(run) == before


@pytest.mark.slow(minutes=0.2)
def test_damaged_best_checkpoint_warns_on_resume_and_raises_at_the_end(tmp_path, caplog):
    outcome = tiny.train(tmp_path, tiny.config(60))
    assert outcome.best_step < 55, "the test needs a best step that is none of the latest two"
    damaged = largest_of_params(tmp_path / f"checkpoints/{outcome.best_step}")
    flip(damaged)
    tiny.train(tmp_path, tiny.config(60))
    assert f"step {outcome.best_step}, the best so far, is damaged ({damaged}" in caplog.text
    with pytest.raises(CheckpointDamaged) as refused:
        tiny.last_params(tmp_path, outcome.best_step)
    assert f"({damaged} is corrupt): restore it from a copy" in str(refused.value)


def test_step_is_renamed_only_after_its_hashes_are_written(tmp_path, monkeypatch):
    def full_at_step_10(step_folder):
        if step_folder.name.startswith("10."):
            raise OSError(errno.ENOSPC, "No space left on device", str(step_folder))
        integrity.write_checksums(step_folder)

    monkeypatch.setattr(checkpoint, "write_checksums", full_at_step_10)
    with pytest.raises(CannotWrite):
        tiny.train(tmp_path, tiny.SAVES_OFTEN)
    named = [path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit()]
    assert named == ["5"]
