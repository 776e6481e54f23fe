"""Tokens, padding and windows; both LSTMs train on small made-up corpora."""

import numpy as np
import pytest
import torch

from flightning.algorithms import FedAvg
from flightning.callbacks import Federation
from flightning.datamodules import FederatedDataModule, Natural, NextCharacter, Words
from flightning.datamodules.text import PretrainedTokenizer, TextSource, WindowSource
from flightning.errors import ConfigurationError, PartitionError
from flightning.nets import CharLSTM, SentimentLSTM
from tests.problems import fit

# --- words --------------------------------------------------------------------------------------------------------


def test_the_most_frequent_words_are_known():
    words = Words(vocabulary_size=4)
    vocabulary = words.learn(["b a b", "c b a"])
    assert vocabulary == ["<pad>", "<unk>", "b", "a"]
    assert list(words.encode(["c a b"], vocabulary)) == [[1, 3, 2]]


def test_punctuation_is_a_word_and_case_does_not_count():
    words = Words()
    vocabulary = words.learn(["Don't SHOUT!"])
    assert set(vocabulary) == {"<pad>", "<unk>", "don", "'", "t", "shout", "!"}


def test_long_texts_are_cut():
    words = Words(max_length=2)
    vocabulary = words.learn(["a b c"])
    assert list(words.encode(["a b c"], vocabulary)) == [[2, 3]]


def test_a_changed_tokenizer_folder_is_another_tokenizer(tmp_path):
    (tmp_path / "vocab.txt").write_text("a")
    first = PretrainedTokenizer(str(tmp_path)).identity
    assert PretrainedTokenizer(str(tmp_path)).identity == first
    (tmp_path / "vocab.txt").write_text("a b")
    assert PretrainedTokenizer(str(tmp_path)).identity != first


def test_other_tokenizers_are_told_apart_by_their_settings():
    assert Words(max_length=3).identity == repr(Words(max_length=3))
    assert (
        PretrainedTokenizer("bert-base-uncased").identity
        == "PretrainedTokenizer(name='bert-base-uncased', max_length=64)"
    )


@pytest.mark.parametrize(("option", "rule"), [("vocabulary_size", ">= 3"), ("max_length", ">= 1")])
def test_words_are_checked(option, rule):
    with pytest.raises(ConfigurationError, match=f"`{option}` must be {rule}, got 0"):
        Words(**{option: 0})


# --- sources ------------------------------------------------------------------------------------------------------


def test_each_batch_is_padded_to_its_own_longest_text():
    # texts [1], [2 3], [], [4 5 6]
    source = TextSource(np.array([1, 2, 3, 4, 5, 6]), np.array([0, 1, 3, 3, 6]), np.array([0, 1, 0, 1]))
    first, second, third = (x.tolist() for x, _ in source.batches([np.array([0, 1]), np.array([3, 2]), np.array([2])]))
    assert first == [[1, 0], [2, 3]]
    assert second == [[4, 5, 6], [0, 0, 0]]
    assert third == [[0]]  # an empty text alone is one padding


def test_padding_does_not_change_the_features():
    torch.manual_seed(0)
    net = SentimentLSTM((8,), 2, vocabulary=10, embedding_size=4, hidden_size=5).eval()
    alone, padded = torch.tensor([[3, 4]]), torch.tensor([[3, 4, 0, 0, 0]])
    assert torch.equal(net(alone), net(padded))


def test_windows_and_the_token_after_them():
    source = WindowSource(np.arange(10), np.array([0, 4]), length=3)
    inputs, targets = next(source.batches([np.array([1, 0])]))
    assert inputs.tolist() == [[4, 5, 6], [0, 1, 2]]
    assert targets.tolist() == [7, 3]
    assert source.labels.tolist() == [3, 7]


# --- the next character -------------------------------------------------------------------------------------------

ROLES = {"HAMLET": "to be or not to be " * 6, "OPHELIA": "my lord my lord " * 5, "GHOST": "swear"}


@pytest.fixture
def plays(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hub"))
    datasets.disable_progress_bars()
    path = tmp_path / "plays.parquet"
    datasets.Dataset.from_dict({"role": list(ROLES), "text": list(ROLES.values())}).to_parquet(path)

    def make(**kwargs):
        options = {"length": 8, "cache_dir": str(tmp_path / "cache"), "batch_size": 8, **kwargs}
        return NextCharacter("parquet", data_files=str(path), **options)

    return make


def test_one_client_per_role_that_is_long_enough(plays):
    data = plays()
    data.setup("fit")
    # 114 and 80 characters make 106 and 72 windows; those whose next character is in the last tenth are for testing:
    # round(0.9 * 114) = 103 and 72 characters are for training
    assert data.num_clients == 2
    assert data.sizes.tolist() == [103 - 8, 72 - 8]
    assert len(data.test_source) == (114 - 103) + (80 - 72)
    assert data.num_classes == len(set("".join(ROLES.values())))


def test_windows_hold_the_text_of_one_role(plays):
    data = plays(shuffle=False)
    data.setup("fit")
    alphabet = data.cached.meta["alphabet"]
    names = data.train_source.id_names
    for client, part in enumerate(data.parts):
        inputs, targets = next(iter(data.train_source.batches([part])))
        role = ROLES[names[int(data.train_source.ids[part[0]])]]
        for window, target in zip(inputs.tolist(), targets.tolist(), strict=True):
            assert "".join(alphabet[i] for i in [*window, target]) in role, client


def test_no_test_character_is_trained_on(plays):
    data = plays()
    data.setup("fit")
    trained, tested = (source.starts + source.length for source in (data.train_source, data.test_source))
    assert not set(trained.tolist()) & set(tested.tolist())


def test_stride_thins_the_windows(plays):
    data = plays(stride=3, test_fraction=0.0)
    data.setup("fit")
    assert data.sizes.tolist() == [36, 24]  # 106 / 3 and 72 / 3, rounded up
    assert data.test_source is None


def test_local_tests_are_those_of_the_role(plays):
    data = plays()
    data.setup("fit")
    assert [len(part) for part in data.local_tests.parts] == [11, 8]


def test_rows_of_a_role_are_joined(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hub"))
    lines = {"role": ["b", "a", "b"], "text": ["one", "xyz", "two"]}
    datasets.Dataset.from_dict(lines).to_parquet(tmp_path / "x.parquet")
    data = NextCharacter(
        "parquet", data_files=str(tmp_path / "x.parquet"), length=2, cache_dir=str(tmp_path), test_fraction=0.0
    )
    data.setup("fit")
    text = "".join(data.cached.meta["alphabet"][i] for i in data.cached.arrays["tokens"])
    assert text == "xyzone\ntwo"
    assert data.class_names[0] == "\\n"


def test_texts_shorter_than_a_window_are_refused(plays):
    with pytest.raises(
        ConfigurationError, match=r"no client has more than `length=200` characters, the longest .* 114"
    ):
        plays(length=200).setup("fit")


def test_an_unknown_column_is_answered_with_those_there_are(plays):
    with pytest.raises(ConfigurationError, match=r"no column `client_column='user'`: the columns are `role`, `text`"):
        plays(client_column="user").setup("fit")


def test_min_samples_leaves_small_roles_out(plays):
    data = plays(partition=Natural(min_samples=90))
    data.setup("fit")
    assert data.num_clients == 1
    with pytest.raises(PartitionError, match="lower `min_samples`"):
        plays(partition=Natural(min_samples=1000)).setup("fit")


@pytest.mark.parametrize(("option", "value"), [("length", 0), ("stride", 0), ("test_fraction", 1.0)])
def test_options_are_checked(plays, option, value):
    with pytest.raises(ConfigurationError, match=f"`{option}` must"):
        plays(**{option: value})


# --- both networks train ------------------------------------------------------------------------------------------


def rounds_of(module, data, rounds, optimizer):
    losses = []

    class Memory(Federation):
        def on_train_epoch_end(self, trainer, pl_module):
            super().on_train_epoch_end(trainer, pl_module)
            losses.append(self.finished_metrics()["round/loss"])

    module.configure_optimizers = lambda: optimizer(p for p in module.parameters() if p.requires_grad)
    trainer = fit(module, data, rounds, Memory(local_epochs=2))
    return losses, trainer.callback_metrics


def test_the_character_lstm_learns_the_next_character(plays):
    data = plays()
    data.setup("fit")
    torch.manual_seed(0)
    module = FedAvg(
        net=lambda shape, classes: CharLSTM(shape, classes, hidden_size=24),
        input_shape=data.input_shape,
        num_classes=data.num_classes,
    )
    losses, metrics = rounds_of(module, data, 6, lambda p: torch.optim.RMSprop(p, lr=0.01))
    assert losses[-1] < 0.5 * losses[0]
    assert metrics["val/accuracy"] > 0.5


def test_the_sentiment_lstm_learns_from_tweets():
    rng = np.random.default_rng(0)
    words = Words(vocabulary_size=50, max_length=8)
    texts, labels = [], []
    for i in range(120):
        mood = ["awful", "terrible", "sad"] if i % 2 == 0 else ["great", "lovely", "happy"]
        text = rng.choice(["the", "day", "was", "a", "so", *mood * 2], size=int(rng.integers(3, 12)))
        texts.append(" ".join([*text, rng.choice(mood)]))
        labels.append(i % 2)
    vocabulary = words.learn(texts)
    encoded = list(words.encode(texts, vocabulary))
    source = TextSource(
        np.concatenate(encoded), np.cumsum([0, *map(len, encoded)]), np.array(labels), ids=np.arange(120) % 4
    )
    data = FederatedDataModule.from_dataset(source, partition=Natural(), val_fraction=0.2, batch_size=10, num_classes=2)
    torch.manual_seed(0)
    module = FedAvg(
        net=lambda shape, classes: SentimentLSTM(shape, classes, vocabulary=50, embedding_size=16, hidden_size=16),
        input_shape=(8,),
        num_classes=2,
    )
    losses, metrics = rounds_of(module, data, 6, lambda p: torch.optim.RMSprop(p, lr=0.01))
    assert losses[-1] < losses[0]
    assert metrics["val/accuracy"] > 0.8
