"""One paper per file: a mixin for any `LightningModule`, and a ready-made class on the built-in classifier."""

from flightning.algorithms.base import FederatedMixin
from flightning.algorithms.cdfdm import CDFDM, CDFDMMixin
from flightning.algorithms.centralized import Centralized, CentralizedMixin
from flightning.algorithms.fedatt import FedAtt, FedAttMixin
from flightning.algorithms.fedavg import FedAvg, FedAvgMixin
from flightning.algorithms.fedavgm import FedAvgM, FedAvgMMixin
from flightning.algorithms.fedbn import FedBN, FedBNMixin
from flightning.algorithms.fedcd import FedCD, FedCDMixin
from flightning.algorithms.fedir import FedIR, FedIRMixin
from flightning.algorithms.fedproto import FedProto, FedProtoMixin
from flightning.algorithms.fedprox import FedProx, FedProxMixin
from flightning.algorithms.fedrl import FedRL, FedRLMixin
from flightning.algorithms.ida import IDA, IDAMixin
from flightning.algorithms.scaffold import SCAFFOLD, SCAFFOLDMixin
from flightning.algorithms.silobn import SiloBN, SiloBNMixin
from flightning.algorithms.solo import SOLO, SOLOMixin

__all__ = [
    "CDFDM",
    "IDA",
    "SCAFFOLD",
    "SOLO",
    "CDFDMMixin",
    "Centralized",
    "CentralizedMixin",
    "FedAtt",
    "FedAttMixin",
    "FedAvg",
    "FedAvgM",
    "FedAvgMMixin",
    "FedAvgMixin",
    "FedBN",
    "FedBNMixin",
    "FedCD",
    "FedCDMixin",
    "FedIR",
    "FedIRMixin",
    "FedProto",
    "FedProtoMixin",
    "FedProx",
    "FedProxMixin",
    "FedRL",
    "FedRLMixin",
    "FederatedMixin",
    "IDAMixin",
    "SCAFFOLDMixin",
    "SOLOMixin",
    "SiloBN",
    "SiloBNMixin",
]
