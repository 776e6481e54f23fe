import torch

from flightning.functional.features import mean_map


def test_features_of_half_precision_are_bounded_in_full():
    features = torch.randn(200, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    labels = torch.zeros(200, dtype=torch.long)
    rounded, exact = (mean_map([(z, labels)], clip=1.0) for z in (features, features.float()))
    torch.testing.assert_close(rounded, exact, rtol=1e-5, atol=1e-6)
