"""Pretrains a language model: `python run_pretrain.py --config=configs/pretrain.py …`."""

from absl import flags

from harness import command_line
from harness.command_line import refuse

CONFIG = command_line.define_config(
    "configs/pretrain.py[:SIZE[,attention=NAME][,option=value …]]", lambda name: name == "pretrain"
)
HOSTS = command_line.define_hosts()
WORKDIR = flags.DEFINE_string(
    "workdir", None, "The run's folder; default runs/<config>-<argument>-seed<k>."
)
MODE = flags.DEFINE_enum(
    "mode",
    "train",
    ["train", "eval", "check"],
    "eval scores a finished run's best checkpoint again; check tries every value, and does no more.",
)


def main(argv: list[str]) -> int:
    """Trains, scores or checks; returns the exit code."""
    if wrong := command_line.check_arguments(argv, CONFIG, "configs/pretrain.py"):
        return refuse(wrong)
    command_line.start_logging()
    from harness import cache
    from language import corpus, pretrain  # here: a wrong flag is answered without loading jax
    from nystromformer_jax import training

    command_line.leave_by(training.leave, training.exit_code_of, at_once=training.ProcessLost)
    training.join(training.HostsConfig(**HOSTS()))
    command_line.start_logging(quiet=not training.is_first())
    config = CONFIG.value.to_dict()
    run = pretrain.prepare(config)
    if MODE.value == "check":
        if training.is_first():
            print(command_line.CHECKED)
        return 0
    folder = command_line.run_folder(WORKDIR.value, config["train"]["seed"], alone=True)
    if MODE.value == "eval" and not folder.is_dir():
        return refuse(f"--mode=eval needs a finished run; there is no folder {folder}")
    training.enable_compilation_cache(cache.cache_dir() / "xla")
    data = corpus.load(run.data)
    with (
        training.naming_the_lost(),
        training.Workdir(folder, config, paths=pretrain.PATHS) as workdir,
    ):
        finished = workdir.result is not None
        score = pretrain.score_again if MODE.value == "eval" else pretrain.train
        result = score(run, data, workdir)
    end = f"Everything is in {folder}, the model in {folder / 'model'}."
    if finished and MODE.value == "train":
        end = f"It had finished before; nothing was trained. See {folder}."
    if training.is_first():
        print(f"{pretrain.sentence(result)} {end}", flush=True)
    return 0


if __name__ == "__main__":
    command_line.run(main)
