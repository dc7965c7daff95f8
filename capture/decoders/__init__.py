from capture.decoders.choose import decoder
from capture.decoders.contract import Decoder, by_batch, per_message

__all__ = ["Decoder", "by_batch", "decoder", "per_message"]
