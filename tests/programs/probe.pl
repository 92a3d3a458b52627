#!/usr/bin/perl
# Perl under a fork: data, closures, sort order, random state, alarms and handlers, sockets, formats, regex positions.
# Protocol as in probe.h: prints "ready", waits for --go, then prints what it finds.
use strict;
use warnings;
use Getopt::Long;
use IO::Select;
use Socket;
use Time::HiRes qw(setitimer ITIMER_REAL sleep time);

my %option = (go => '/tmp/go', dir => '/tmp', ready => $ENV{READY_FILE});
GetOptions('go=s' => \$option{go}, 'dir=s' => \$option{dir}, 'ready-file=s' => \$option{ready}) or exit 2;
$| = 1;
my $failures = 0;

sub check {
    my ($held, $what) = @_;
    print "$what: ", ($held ? 'ok' : 'FAILED'), "\n";
    $failures++ unless $held;
}

srand 42;
rand for 1 .. 10;
my %squares = map { $_ => $_ * $_ } 1 .. 5000;
my $order = join ',', (keys %squares)[0 .. 9];
my $counter = do { my $value = 10; sub { return $value++ } };
$counter->() for 1 .. 5;
my $text = 'one two three four';
$text =~ /\w+/g;
my $alarms = 0;
local $SIG{ALRM} = sub { $alarms++ };
my $usr = 0;
local $SIG{USR1} = sub { $usr++ };
setitimer(ITIMER_REAL, 0.02, 0.02);
socketpair(my $one, my $other, AF_UNIX, SOCK_STREAM, PF_UNSPEC) or die "socketpair: $!";
syswrite $one, 'queued';
open(my $file, '+>', "$option{dir}/probe-pl.out") or die "open: $!";
print {$file} "first line\nsecond line\n";
seek $file, 0, 0;
my $first = <$file>;

if (defined $option{ready}) { open(my $made, '>', $option{ready}) or die "ready: $!"; close $made }
print "ready\n";
sleep 0.002 until -e $option{go};

my $before = $alarms;
my $end = time + 0.3;
sleep 0.05 while time < $end;
check($alarms > $before, 'alarms go on');
setitimer(ITIMER_REAL, 0);
kill 'USR1', $$;
sleep 0.01;
print "handler ran $usr\n";
printf "random %.12f %.12f\n", rand, rand;
check($order eq join(',', (keys %squares)[0 .. 9]), 'hash order');
print "squares ", scalar(keys %squares), " $squares{5000}\n";
print "closure ", $counter->(), "\n";
$text =~ /(\w+)/g;
print "match goes on at $1\n";
sysread $other, my $bytes, 100;
print "socket $bytes\n";
check(!IO::Select->new($other)->can_read(0), 'socket empty then');
my $second = <$file>;
print "file $second";
print 'command ', qx(/bin/echo from a child);
check($? == 0, 'subprocess after the fork');
print $failures ? "done with failures\n" : "done\n";
exit($failures ? 1 : 0);
