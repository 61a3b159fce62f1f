"""Whether a task is read from files, generated, or taken from tensorflow-datasets."""

from lra.data.task import DataConfig


def from_tfds(config: DataConfig, *, task: str, needs: str) -> bool:
    """Whether `config` asks for tensorflow-datasets; otherwise it names a folder of files.

    Args:
      config: `source` is "files", "tfds", or "auto": files, wherever `dir` is set.
      task: its name in sentences.
      needs: what its files are called in sentences.

    Raises:
      ValueError: a source that does not exist, or files without a folder.
    """
    if config.source not in ("auto", "files", "tfds"):
        raise ValueError(
            f"{task} has no source {config.source!r}: set data.source to auto, files or tfds."
        )
    if config.source != "tfds" and not config.dir:
        raise ValueError(
            f"{task} needs {needs}: set --config.data.dir to the folder with the download, or"
            " --config.data.source=tfds where tensorflow-datasets has them prepared."
        )
    return config.source == "tfds"


def from_files(config: DataConfig, *, task: str, folder: str) -> bool:
    """Whether `config` asks a task that can be generated for files instead.

    Args:
      config: `source` is "files", "generated", or "auto": files, wherever `dir` is set.
      task: its name in sentences.
      folder: what the folder of its files is called in sentences.

    Raises:
      ValueError: a source that does not exist or does not fit `dir`.
    """
    if config.source not in ("auto", "files", "generated"):
        raise ValueError(
            f"{task} has no source {config.source!r}: set data.source to auto, files or generated."
        )
    if config.source == "files" and not config.dir:
        raise ValueError(
            f"{task} with data.source=files needs a folder: set --config.data.dir to {folder}."
        )
    if config.source == "generated" and config.dir:
        raise ValueError(
            f"{task} cannot both be generated and be read from data.dir={config.dir!r}: leave"
            " data.dir empty, or set data.source to files."
        )
    return bool(config.dir)
