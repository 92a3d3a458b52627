# frozen_string_literal: true

# Loaded by each Ruby (RUBYOPT): a copy of a sandbox draws random numbers of its own. OpenSSL sees to its own (openssl.c).
before = Signal.trap('URG') { Random.srand }
Signal.trap('URG', before) unless ['DEFAULT', 'SYSTEM_DEFAULT', nil].include?(before)
