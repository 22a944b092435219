"""`jaxcomp data`: prepare data sets and see which are there."""

import argparse
import json
from collections.abc import Iterator
from typing import Any

from jaxcomp.cli.run_command import add_command, aligned
from jaxcomp.core.errors import UserError

_BUILT_IN = {
    "class_folders": "images of your own: class_folders(path='...')",
    "digits": "built in (scikit-learn)",
    "imagenet": "class folders of its pictures: imagenet(path='...')",
    "tfds": "what TFDS has prepared: tfds(name='...')",
    "grammar": "built in (made from a random grammar)",
    "folder": "a text of your own: folder(path='...')",
}


def add_parser(subparsers: Any) -> None:
    """Add the command `data`; as `run_command.add_command`.

    Example:
      >>> parser = argparse.ArgumentParser()
      >>> add_parser(parser.add_subparsers())
      >>> parser.parse_args(["data", "prepare", "mnist"]).name
      'mnist'
    """
    parser = add_command(subparsers, "data", _list)
    parser.description = "Prepare data sets and list them."
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    prepare = add_command(actions, "prepare", _prepare)
    add = prepare.add_argument
    add("name", metavar="NAME", help="one that `data list` shows")
    add("--archive", metavar="FILE", help="the archive or an unpacked folder")
    add("--force", action="store_true", help="prepare again what is there already")
    listing = add_command(actions, "list", _list)
    listing.add_argument("--json", action="store_true", help="for machines")
    for action in (prepare, listing):
        action.add_argument("--data-dir", metavar="DIR", help="folder of prepared data")


def _names() -> list[str]:
    """Images and then texts."""
    from jaxcomp import data
    from jaxcomp.data import text

    return [*data.REGISTRY, *text.REGISTRY]


def _list(args: argparse.Namespace) -> int:
    """List every data set, whether it is prepared, and where.

    examples:
      jaxcomp data list
      jaxcomp data prepare cifar10 --archive cifar-10-binary.tar.gz
    """
    found = list(_states(args.data_dir))
    if args.json:
        keys = ("name", "state", "folder")
        rows = [dict(zip(keys, row, strict=True)) for row in found]
        print(json.dumps(rows, indent=1))
        return 0
    print(aligned(found))
    return 0


def _states(data_dir: str | None) -> Iterator[tuple[str, str, str]]:
    """Each data set, whether it is prepared, and where it is or would be."""
    from jaxcomp.data import prepare
    from jaxcomp.data.preparable import preparable

    known, root = preparable(), prepare.data_root(data_dir)
    for name in _names():
        if name not in known:
            yield name, _BUILT_IN[name], ""
            continue
        state = "prepared" if prepare.find(known[name], data_dir) else "not prepared"
        yield name, state, str(root / known[name].place)


def _prepare(args: argparse.Namespace) -> int:
    """Prepare one data set from its archive, or download it.

    examples:
      jaxcomp data prepare cifar10
          download CIFAR-10, check it, prepare it
      jaxcomp data prepare cifar10 --archive cifar-10-binary.tar.gz
          the same from a file; an unpacked folder does as well
      jaxcomp data prepare mnist --archive DIR
          DIR, a tar or a zip holds the four idx .gz files
      jaxcomp data prepare cifar100 --data-dir /data --force
          prepare again, below /data
      jaxcomp data prepare imagenet32 --archive DIR
          DIR holds the .npz batches of the downsampled ImageNet
      jaxcomp data prepare ptb --archive DIR
          DIR, a tar or a zip holds ptb.train.txt, ptb.valid.txt and ptb.test.txt

    Prepared data is looked for in --data-dir, else in the environment variable
    JAXCOMP_DATA_DIR, else in ~/.cache/jaxcomp. TensorFlow is not needed.
    """
    from jaxcomp.core.specs import suggest
    from jaxcomp.data.preparable import preparable
    from jaxcomp.data.prepare import find, prepare
    from jaxcomp.runs.display import bars

    name, known = args.name, preparable()
    if name not in _names():
        hint = suggest(name, _names())
        raise UserError(f"unknown data set {name!r}. {hint}")
    if name not in known:
        print(f"{name} needs no preparation: {_BUILT_IN[name]}")
        return 0
    with bars() as progress:
        done = prepare(
            known[name],
            archive=args.archive,
            data_dir=args.data_dir,
            force=args.force,
            progress=progress,
        )
    if done:
        print(f"{name}: {done}")
    else:
        place = find(known[name], args.data_dir)
        print(f"{name} is already prepared in {place} (--force prepares anew)")
    return 0
