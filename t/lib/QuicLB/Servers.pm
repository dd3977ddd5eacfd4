package QuicLB::Servers;

# Test servers of one quic_server.py, and the events they log; what the logs
# tell about routing is routes() of QuicLB.
#
#   $servers->port('one')               # the UDP port
#   $servers->address('one')            # 127.0.0.1:PORT, [::1]:PORT
#   $servers->lines(\%ids)              # "server ADDRESS;", for an upstream
#   $servers->id_lines(\%ids)           # "server_id ID ADDRESS;", for quic_lb
#   $servers->command('pause', 'one')   # also resume, close
#   $servers->events(event => 'datagram', server => 'one')
#   $servers->stop('KILL')

use strict;
use warnings;

use JSON::PP;

use QuicLB::Process qw/slurp/;

use parent 'QuicLB::Process';


sub new {
    my ($class, $name, $dir, $command, $servers) = @_;

    my $log = "$dir/$name.log";
    my @servers = map { ('--server', join(',', @$_)) } @$servers;

    my $self = $class->SUPER::new($name, $dir,
                                  [@$command, '--log', $log, @servers],
                                  stdin => 1);
    $self->{log} = $log;

    for my $server (@$servers) {
        my ($address) = $server->[1] =~ /^(.*):\d+$/;
        my ($port) = $self->wait_line(qr/^ready \Q$server->[0]\E (\d+)$/);

        if (!defined $port) {
            $self->stop();
            die "$name: not ready\n" . $self->stderr();
        }

        $self->{ports}{$server->[0]} = $port;
        $self->{addresses}{$server->[0]} = "$address:$port";
    }

    return $self;
}


sub port {
    my ($self, $name) = @_;

    return $self->{ports}{$name};
}


sub address {
    my ($self, $name) = @_;

    return $self->{addresses}{$name};
}


# lines of a configuration, for the servers whose names are the keys of %$ids

sub lines {
    my ($self, $ids, $parameters) = @_;

    return join "\n", map {
        join(' ', 'server', $self->address($_), $parameters // ()) . ';'
    } sort keys %$ids;
}


sub id_lines {
    my ($self, $ids) = @_;

    return join "\n", map {
        "server_id $ids->{$_} " . $self->address($_) . ';'
    } sort keys %$ids;
}


sub log_path {
    my ($self) = @_;

    return $self->{log};
}


sub command {
    my ($self, $verb, $name) = @_;

    $self->say("$verb $name");
    my ($answer) = $self->wait_line(qr/^(ok|error) \Q$verb $name\E$/);

    die "server: $verb $name: " . ($answer // 'no answer')
        if ($answer // '') ne 'ok';
}


# events with all the given fields

sub events {
    my ($self, %wanted) = @_;

    # the last line may be half written
    my @lines = slurp($self->{log}) =~ /^(.*)\n/mg;
    my @events = map { decode_json($_) } @lines;

    for my $field (keys %wanted) {
        @events = grep { ($_->{$field} // '') eq $wanted{$field} } @events;
    }

    return @events;
}


1;
