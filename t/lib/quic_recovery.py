"""aioquic's loss recovery, kept prompt on a busy machine.

Importing it is enough: connections made afterwards use it.

aioquic adds up the difference from the least RTT ever, not from the smoothed
one (RFC 9002, 5.3), so some late acknowledgments raise its probe timeout to
half a minute, and a packet lost by a change of path stalls the connection for
longer than a test waits.
"""

import aioquic.quic.connection
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


# QuicConnection makes its recovery by this name
aioquic.quic.connection.QuicPacketRecovery = Recovery
