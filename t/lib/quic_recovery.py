"""aioquic's loss recovery and streams, mended.

Importing it is enough: connections made afterwards use it.

aioquic adds up the difference from the least RTT ever, not from the smoothed
one (RFC 9002, 5.3), so some late acknowledgments raise its probe timeout to
half a minute, and a packet lost by a change of path stalls the connection for
longer than a test waits.

A stream forgets a FIN that has no room in a packet any more, and does not stand
being reset twice, as a repeated STOP_SENDING does, or one that crosses a reset.
"""

import aioquic.quic.connection
import aioquic.quic.stream
from aioquic.quic.recovery import QuicPacketRecovery

# Also with back-off: RFC 9002 has no limit, but here all networks are local.
MAX_PROBE_TIMEOUT = 1.0


class Recovery(QuicPacketRecovery):

    def get_loss_detection_time(self):
        due = super().get_loss_detection_time()

        if due is None or self._get_loss_space() is not None:
            return due                  # not of a probe

        return min(due, self._time_of_last_sent_ack_eliciting_packet
                   + MAX_PROBE_TIMEOUT)


class Sender(aioquic.quic.stream.QuicStreamSender):

    def get_frame(self, max_size, max_offset=None):
        return None if max_size < 0 else super().get_frame(max_size,
                                                           max_offset)

    def reset(self, error_code):
        if self._reset_error_code is None:
            super().reset(error_code)


# connections and streams make theirs by these names
aioquic.quic.stream.QuicStreamSender = Sender
aioquic.quic.connection.QuicPacketRecovery = Recovery
