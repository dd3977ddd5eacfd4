"""aioquic's loss recovery and streams, mended.

Importing it is enough: connections made afterwards use it.

aioquic adds up the difference from the least RTT ever, not from the smoothed
one (RFC 9002, 5.3), so some late acknowledgments raise its probe timeout to
half a minute, and a packet lost by a change of path stalls the connection for
longer than a test waits.  But many connections that probe more often than a
busy machine answers keep it busy.

Its first probe timeout is 200 ms, not a second (RFC 9002, 6.2.2), and on a busy
machine a first packet so comes twice.

A stream forgets a FIN that has no room in a packet any more, and does not stand
being reset twice, as a repeated STOP_SENDING does, or one that crosses a reset.
"""

import aioquic.quic.connection
import aioquic.quic.stream
from aioquic.quic.recovery import QuicPacketRecovery

# Also with back-off: RFC 9002 has no limit, but here all networks are local.
MAX_PROBE_TIMEOUT = 1.0

# The timeout is twice that.
INITIAL_RTT = 0.5


class Recovery(QuicPacketRecovery):

    def __init__(self, *, initial_rtt, **kwargs):
        super().__init__(initial_rtt=INITIAL_RTT, **kwargs)

    def on_ack_received(self, **kwargs):
        known = self._rtt_initialized
        smoothed, variance = self._rtt_smoothed, self._rtt_variance
        super().on_ack_received(**kwargs)

        if known and variance != self._rtt_variance:
            self._rtt_variance = 3 / 4 * variance \
                + 1 / 4 * abs(smoothed - self._rtt_latest)

    def get_loss_detection_time(self):
        due = super().get_loss_detection_time()

        if due is None or self._get_loss_space() is not None:
            return due                  # not of a probe

        longest = max(MAX_PROBE_TIMEOUT, 3 * self._rtt_smoothed)

        return min(due, self._time_of_last_sent_ack_eliciting_packet + longest)


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
