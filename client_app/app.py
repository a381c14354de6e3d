"""The Flower ClientApp: decode, answer, encode. A failure becomes an error reply with its reason.

Flower's own error reply holds no more than the exception's text, in simulation not even its
type, so handlers reply themselves: type, text and frames.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from logging import ERROR

from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.common.logger import log

from client_app.answers import answer_evaluate, answer_hello, answer_item_counts
from client_app.device import DeviceError
from client_app.errors import DataError
from client_app.failures import TrainError, describe
from client_app.node_config import NodeError
from client_app.private_state import UnknownRun
from client_app.runtime import Node, decode_shared, open_node
from client_app.secagg import answer_keys, answer_shares, answer_unmask
from client_app.secagg_payloads import protected_counts, protected_evaluation, protected_train
from client_app.store_file import StoreError
from client_app.training import answer_train
from conf.tree import ConfigError
from models.types import Tensors
from strategies import wire
from strategies.bundle import bundled, is_bundled, unbundled
from strategies.codec import WireError
from strategies.secagg.crypto import SecAggError
from strategies.secagg.fixed_point import RangeError

Answer = Callable[[Message, Context], RecordDict]
Handler = Callable[[Message, Context], Message]

DELIBERATE = (
    DataError,
    StoreError,
    NodeError,
    ConfigError,
    WireError,
    DeviceError,
    SecAggError,
    RangeError,
)
"""Errors whose text says it all; those of any other type are logged with their traceback."""

app = ClientApp()


def deliberate(error: BaseException | None) -> bool:
    """Whether an error, or what made training fail, is one of ours."""
    return isinstance(error.__cause__ if isinstance(error, TrainError) else error, DELIBERATE)


def replying(answer: Answer) -> Handler:
    """Wrap an answer into a reply; an exception into an error reply."""

    @wraps(answer)
    def handler(message: Message, context: Context) -> Message:
        try:
            if not is_bundled(message.content):
                return Message(answer(message, context), reply_to=message)
            message.content = unbundled(message.content)
            return Message(bundled(answer(message, context)), reply_to=message)
        except Exception as error:  # noqa: BLE001  the reply is where it is raised
            told = describe(error)
            trace = None if deliberate(error) else error
            log(ERROR, "%s failed: %s", message.metadata.message_type, told, exc_info=trace)
            reason = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, told)
            return Message(reason, reply_to=message)

    return handler


@app.train()
@replying
def train(message: Message, context: Context) -> RecordDict:
    """Train the cohort's users on this node."""
    decoder = _Decoder()
    request = wire.decode_downlink(message.content, decoder)
    node = open_node(context.node_config, request.header, unknown_run=_stock(request.reply_weights))
    return protected_train(
        node, message.content, request, answer_train(node, request, decoder.digest)
    )


@app.evaluate()
@replying
def evaluate(message: Message, context: Context) -> RecordDict:
    """Rank the held-out items of the node's users."""
    request = wire.decode_evaluate(message.content, _Decoder())
    node = open_node(context.node_config, request.header, unknown_run=_stock(request.reply_means))
    return protected_evaluation(node, message.content, request, answer_evaluate(node, request))


@app.query("hello")
@replying
def hello(message: Message, context: Context) -> RecordDict:
    """Introduce the node."""
    request = wire.decode_hello_request(message.content)
    unknown_run: UnknownRun = "start" if request.may_start else "report"
    node = open_node(context.node_config, request.header, unknown_run=unknown_run)
    return answer_hello(node, request)


@app.query("item_counts")
@replying
def item_counts(message: Message, context: Context) -> RecordDict:
    """Count the training interactions of each item."""
    header = wire.decode_header(message.content)
    node = open_node(context.node_config, header, unknown_run="refuse")
    return protected_counts(node, message.content, answer_item_counts(node))


@app.query("secagg_keys")
@replying
def secagg_keys(message: Message, context: Context) -> RecordDict:
    """Give public keys for a session of secure aggregation."""
    return answer_keys(_node_of(message, context), message.content)


@app.query("secagg_shares")
@replying
def secagg_shares(message: Message, context: Context) -> RecordDict:
    """Give sealed shares of the session's secrets."""
    return answer_shares(_node_of(message, context), message.content)


@app.query("secagg_unmask")
@replying
def secagg_unmask(message: Message, context: Context) -> RecordDict:
    """Give what unmasks the sum of the survivors."""
    return answer_unmask(_node_of(message, context), message.content)


def _node_of(message: Message, context: Context) -> Node:
    header = wire.decode_header(message.content)
    return open_node(context.node_config, header, unknown_run="refuse")


@app.query("refused")
@replying
def refused(message: Message, context: Context) -> RecordDict:
    """Note in the node's log why the server does not admit it."""
    log(ERROR, "The server does not admit this node: %s", wire.decode_refusal(message.content))
    return RecordDict()


def _stock(request: bool) -> UnknownRun:
    """A stock Flower strategy says no hello: its first request starts the run."""
    return "start" if request else "refuse"


class _Decoder:
    """Decodes shared parameters by the process's cache and notes their hash."""

    digest: bytes = b""

    def __call__(self, record: ArrayRecord) -> Tensors:
        shared, self.digest = decode_shared(record)
        return shared
