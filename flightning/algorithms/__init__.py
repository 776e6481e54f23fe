"""One paper per file: a mixin for any `LightningModule`, and a ready-made class on the built-in classifier."""

from flightning.algorithms.base import FederatedMixin
from flightning.algorithms.cdfdm import CDFDM, CDFDMMixin
from flightning.algorithms.centralized import Centralized, CentralizedMixin
from flightning.algorithms.data_sharing import DataSharing, DataSharingMixin
from flightning.algorithms.dsfl import DSFL, DSFLMixin
from flightning.algorithms.fd import FD, FDMixin
from flightning.algorithms.fedadagrad import FedAdagrad, FedAdagradMixin
from flightning.algorithms.fedadam import FedAdam, FedAdamMixin
from flightning.algorithms.fedatt import FedAtt, FedAttMixin
from flightning.algorithms.fedavg import FedAvg, FedAvgMixin
from flightning.algorithms.fedavgm import FedAvgM, FedAvgMMixin
from flightning.algorithms.fedbn import FedBN, FedBNMixin
from flightning.algorithms.fedcd import FedCD, FedCDMixin
from flightning.algorithms.fedcurv import FedCurv, FedCurvMixin
from flightning.algorithms.feddc import FedDC, FedDCMixin
from flightning.algorithms.feddf import FedDF, FedDFMixin
from flightning.algorithms.feddyn import FedDyn, FedDynMixin
from flightning.algorithms.fedir import FedIR, FedIRMixin
from flightning.algorithms.fedma import FedMA, FedMAMixin
from flightning.algorithms.fednova import FedNova, FedNovaMixin
from flightning.algorithms.fedopt import FedOpt, FedOptMixin
from flightning.algorithms.fedpd import FedPD, FedPDMixin
from flightning.algorithms.fedproc import FedProc, FedProcMixin
from flightning.algorithms.fedproto import FedProto, FedProtoMixin
from flightning.algorithms.fedprox import FedProx, FedProxMixin
from flightning.algorithms.fedrl import FedRL, FedRLMixin
from flightning.algorithms.fedyogi import FedYogi, FedYogiMixin
from flightning.algorithms.ida import IDA, IDAMixin
from flightning.algorithms.moon import MOON, MOONMixin
from flightning.algorithms.qfedavg import QFedAvg, QFedAvgMixin
from flightning.algorithms.rfedavg import RFedAvg, RFedAvgMixin
from flightning.algorithms.rfedavg_plus import RFedAvgPlus, RFedAvgPlusMixin
from flightning.algorithms.scaffold import SCAFFOLD, SCAFFOLDMixin
from flightning.algorithms.silobn import SiloBN, SiloBNMixin
from flightning.algorithms.solo import SOLO, SOLOMixin
from flightning.algorithms.vhl import VHL, VHLMixin

__all__ = [
    "CDFDM",
    "DSFL",
    "FD",
    "IDA",
    "MOON",
    "SCAFFOLD",
    "SOLO",
    "VHL",
    "CDFDMMixin",
    "Centralized",
    "CentralizedMixin",
    "DSFLMixin",
    "DataSharing",
    "DataSharingMixin",
    "FDMixin",
    "FedAdagrad",
    "FedAdagradMixin",
    "FedAdam",
    "FedAdamMixin",
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
    "FedCurv",
    "FedCurvMixin",
    "FedDC",
    "FedDCMixin",
    "FedDF",
    "FedDFMixin",
    "FedDyn",
    "FedDynMixin",
    "FedIR",
    "FedIRMixin",
    "FedMA",
    "FedMAMixin",
    "FedNova",
    "FedNovaMixin",
    "FedOpt",
    "FedOptMixin",
    "FedPD",
    "FedPDMixin",
    "FedProc",
    "FedProcMixin",
    "FedProto",
    "FedProtoMixin",
    "FedProx",
    "FedProxMixin",
    "FedRL",
    "FedRLMixin",
    "FedYogi",
    "FedYogiMixin",
    "FederatedMixin",
    "IDAMixin",
    "MOONMixin",
    "QFedAvg",
    "QFedAvgMixin",
    "RFedAvg",
    "RFedAvgMixin",
    "RFedAvgPlus",
    "RFedAvgPlusMixin",
    "SCAFFOLDMixin",
    "SOLOMixin",
    "SiloBN",
    "SiloBNMixin",
    "VHLMixin",
]
