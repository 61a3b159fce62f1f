"""Small reviews, images and trees in every supported format."""

import collections
import hashlib
import io
import statistics
import tarfile

import numpy as np

from lra.data import image, listops, text

REVIEWS_PER_CLASS = 20
IMAGES_PER_FILE = 40


def reviews(per_class=REVIEWS_PER_CLASS):
    """Returns a dict from file name below aclImdb to content: multi-byte letters, HTML, white space."""
    files = {}
    for split in ("train", "test"):
        for sentiment, rating in (("neg", 2), ("pos", 9)):
            for i in range(per_class):
                content = f"A {sentiment} review, né {split} №{i}.<br />Yes.{' Again.' * i}"
                if i % 3 == 0:
                    content = f" \n{content}\t "
                files[f"{split}/{sentiment}/{i}_{rating}.txt"] = content.encode()
    return files


def batches(images_per_file=IMAGES_PER_FILE):
    """Returns a dict from file name below cifar-10-batches-bin to content: noise that never changes."""
    files = {}
    for number, name in enumerate(name for names in image.FILES.values() for name in names):
        labels = (7 * np.arange(images_per_file) + number) % 10
        noise = hashlib.shake_256(name.encode()).digest(3072 * images_per_file)
        planes = np.frombuffer(noise, np.uint8).reshape(images_per_file, 3072)
        files[name] = np.c_[labels, planes].astype(np.uint8).tobytes()
    return files


def write_folder(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def write_archive(path, files, prefix):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_tfds(data_dir, name, features, splits, config=None, version="1.0.0"):
    """A dataset as tfds prepares it; `splits` is name to a list of examples."""
    import tensorflow_datasets as tfds

    dataset = name

    class Fake(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        name = dataset
        VERSION = tfds.core.Version(version)
        BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=config, version=version)] if config else []

        def _info(self):
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(features(tfds.features))
            )

        def _split_generators(self, dl_manager):
            return {split: iter(enumerate(examples)) for split, examples in splits.items()}

        _generate_examples = None  # abstract in tfds; the splits bring their examples themselves

    Fake(data_dir=data_dir, file_format="array_record").download_and_prepare()
    return data_dir / name / (config or "") / version


def write_imdb_tfds(data_dir, files):
    """As tfds's own imdb_reviews: text without white space around it, shuffled, no file names."""
    splits = {"train": [], "test": [], "unsupervised": [{"text": "?", "label": -1}]}
    for name, content in files.items():
        split, sentiment, _ = name.split("/")
        splits[split].append({"text": content.strip(), "label": text.CLASS_NAMES.index(sentiment)})

    def features(connectors):
        label = connectors.ClassLabel(names=text.CLASS_NAMES)
        return {"text": connectors.Text(), "label": label}

    return write_tfds(data_dir, "imdb_reviews", features, splits, config="plain_text")


def write_cifar_tfds(data_dir, files):
    """As tfds's own cifar10: PNG in colour, shuffled, with ids."""
    from PIL import Image

    splits = {split: [] for split in image.FILES}
    for split, names in image.FILES.items():
        for record in np.concatenate(
            [np.frombuffer(files[name], np.uint8).reshape(-1, 3073) for name in names]
        ):
            png = io.BytesIO()
            Image.fromarray(record[1:].reshape(3, 32, 32).transpose(1, 2, 0)).save(png, "PNG")
            splits[split].append(
                {
                    "id": f"{split}_{len(splits[split]):05d}",
                    "image": png.getvalue(),
                    "label": int(record[0]),
                }
            )

    def features(connectors):
        return {
            "id": connectors.Text(),
            "image": connectors.Image(shape=(32, 32, 3)),
            "label": connectors.ClassLabel(num_classes=10),
        }

    return write_tfds(data_dir, "cifar10", features, splits, version="3.0.2")


def official_text(tokens):
    """What the official generator prints for a tree: left-nested pairs, each as `( a b )`."""
    open_lists = [[]]
    for word in listops.decode(tokens).split():
        if word in listops.OPERATORS:
            open_lists.append([word])
        elif word != "]":
            open_lists[-1].append(word)
        else:
            operator, *arguments = open_lists.pop()
            pairs = "".join(f" {argument} )" for argument in [*arguments, "]"])
            open_lists[-1].append("( " * (len(arguments) + 1) + operator + pairs)
    ((text,),) = open_lists
    return text


def write_tsv(path, split):
    """Writes a split as the official generator does."""
    rows = (f"{official_text(tokens)}\t{label}\r\n" for tokens, label in split)
    path.write_text("".join(["Source\tTarget\r\n", *rows]), encoding="utf-8", newline="")


def recursive_value(words):
    """Evaluates a tree by recursion, consuming words from the front."""
    word = next(words)
    if word.isdigit():
        return int(word)
    arguments = []
    while words.peek() != "]":
        arguments.append(recursive_value(words))
    next(words)
    return {
        "[MAX": max,
        "[MIN": min,
        "[MED": lambda values: int(statistics.median(values)),
        "[SM": lambda values: sum(values) % 10,
    }[word](arguments)


class Words:
    def __init__(self, text):
        self.words = collections.deque(text.split())

    def __next__(self):
        return self.words.popleft()

    def peek(self):
        return self.words[0]
