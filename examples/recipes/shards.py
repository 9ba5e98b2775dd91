"""The commands of a sharded scoring run, and what runs them: here, on Dask, or on Ray.

    python examples/recipes/shards.py CANDIDATE ARTIFACT OUT --count 8 --on dask

Workers need the candidate, the artifact and OUT on a shared file system, and to be of one kind:
Law 5 refuses a shard whose processor, threads or versions are not those of the capture.
"""

import argparse
import shlex
import subprocess
from collections.abc import Callable

Command = list[str]


def commands(candidate: str, artifact: str, out: str, count: int) -> tuple[list[Command], Command]:
    """Return the command of every shard, and the one that merges them."""
    given = ["--capture", f"{artifact}/reference", "--suite", f"{artifact}/suite"]
    folders = [f"{out}/shard-{index}" for index in range(count)]
    score = ["cke", "fidelity", "score", candidate, *given]
    shards = [
        [*score, "--out", folder, "--shard", f"{index}/{count}"]
        for index, folder in enumerate(folders)
    ]
    return shards, ["cke", "fidelity", "merge", *folders, *given, "--out", f"{out}/merged"]


def run(command: Command) -> None:
    """Run one command to its end."""
    subprocess.run(command, check=True)


def here(shards: list[Command]) -> None:
    """Run the shards one after the other."""
    for command in shards:
        run(command)


def on_dask(shards: list[Command]) -> None:
    """Run the shards on the cluster that Dask's environment names, one a worker at a time."""
    from dask.distributed import Client

    with Client() as client:
        client.gather(client.map(run, shards, retries=1, pure=False))


def on_ray(shards: list[Command]) -> None:
    """Run the shards on the Ray cluster at hand; a lost one is begun again where it stopped."""
    import ray

    ray.init(address="auto", ignore_reinit_error=True)
    ray.get([ray.remote(max_retries=1)(run).remote(command) for command in shards])


BACKENDS: dict[str, Callable[[list[Command]], None]] = {
    "here": here,
    "dask": on_dask,
    "ray": on_ray,
}


def main(arguments: list[str] | None = None) -> None:
    """Run, or print, the shards and their merge."""
    parser = argparse.ArgumentParser(description="Score a candidate in shards.")
    parser.add_argument("candidate")
    parser.add_argument("artifact")
    parser.add_argument("out")
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--on", choices=sorted(BACKENDS), default="here")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run none")
    given = parser.parse_args(arguments)
    shards, merge = commands(given.candidate, given.artifact, given.out, given.count)
    if given.dry_run:
        for command in (*shards, merge):
            print(shlex.join(command))
        return
    BACKENDS[given.on](shards)
    run(merge)


if __name__ == "__main__":
    main()
