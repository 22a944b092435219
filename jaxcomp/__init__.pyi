# Every public name, and where it is: for type checkers, and for `jaxcomp.__getattr__`.

from jaxcomp import compressors, exchanges, memory, parallel, scope, wire

# Parts that need the extra `train`, or that few programs name.
from jaxcomp import (
    data as data,
)
from jaxcomp import (
    models as models,
)
from jaxcomp import (
    report as report,
)
from jaxcomp import (
    study as study,
)
from jaxcomp import (
    training as training,
)
from jaxcomp import (
    transforms as transforms,
)
from jaxcomp.checkpoint.resize import resized
from jaxcomp.checkpoint.save import restore, save
from jaxcomp.compressors import make as make_compressor
from jaxcomp.core.coding.payloads import nbits
from jaxcomp.core.errors import UserError
from jaxcomp.core.files import CheckpointError
from jaxcomp.core.specs import SpecError
from jaxcomp.core.types import (
    Averaged,
    Compressor,
    Exchange,
    Info,
    Mixed,
    Mixer,
    PerWorker,
    Resize,
    averaged_on_resize,
)
from jaxcomp.exchanges.overlap import overlapped, ready_order
from jaxcomp.mixers import gossip, local
from jaxcomp.mixers.gossip import topology
from jaxcomp.parallel import pmap, shard_map
from jaxcomp.transforms import clipping, optimizers
from jaxcomp.transforms.check_state import check_state, per_worker
from jaxcomp.transforms.distributed import (
    DistributedState,
    distributed,
    find_state,
    find_states,
    mixing,
    pmean,
)
from jaxcomp.transforms.jit import (
    Comm,
    DataParallel,
    Decentralised,
    data_parallel,
    decentralised,
)
from jaxcomp.transforms.make import make_exchange
from jaxcomp.transforms.make_mixer import make_mixer
from jaxcomp.transforms.nonfinite import applied_if, skip_nonfinite
from jaxcomp.wire.predict import predict

__all__ = [
    "Averaged",
    "CheckpointError",
    "Comm",
    "Compressor",
    "DataParallel",
    "Decentralised",
    "DistributedState",
    "Exchange",
    "Info",
    "Mixed",
    "Mixer",
    "PerWorker",
    "Resize",
    "SpecError",
    "UserError",
    "__version__",
    "applied_if",
    "averaged_on_resize",
    "check_state",
    "clipping",
    "compressors",
    "data_parallel",
    "decentralised",
    "distributed",
    "exchanges",
    "find_state",
    "find_states",
    "gossip",
    "local",
    "make_compressor",
    "make_exchange",
    "make_mixer",
    "memory",
    "mixing",
    "nbits",
    "optimizers",
    "overlapped",
    "parallel",
    "per_worker",
    "pmap",
    "pmean",
    "predict",
    "ready_order",
    "resized",
    "restore",
    "save",
    "scope",
    "shard_map",
    "skip_nonfinite",
    "topology",
    "wire",
]

__version__: str
