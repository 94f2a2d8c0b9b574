complete -c claim -s m -l max -d 'At most N holders. The capacity is part of the identity: the same name with another N is another claim' -r
complete -c claim -s w -l wait -d 'Give up after DUR (as `500ms`, `2.5`, `10s`, `1m30s`, `2h`); 0 tries once. Without it: wait for ever' -r
complete -c claim -s E -l conflict-exit-code -d 'The exit status when the claim was not had' -r
complete -c claim -l class -d 'A freed slot goes to the oldest waiter of the highest class that has one' -r -f -a "interactive\t'Served first, and never displaced from a bounded queue'
high\t'Before normal and low'
normal\t'Before low'
low\t'Served when nobody else waits'"
complete -c claim -l queue-size -d 'At most K waiters: a newcomer to a full queue displaces the newest waiter of the lowest class under its own, or is refused. 0: never wait' -r
complete -c claim -l kill-after -d 'Send SIGKILL to COMMAND (with --tree: to all it started), DUR after a SIGTERM was passed on' -r
complete -c claim -l at-least -d 'Keep the slot taken until DUR after it was had, also when COMMAND has ended sooner, however it ended' -r
complete -c claim -l label -d 'What --who shows; without it: COMMAND' -r
complete -c claim -l dir -d 'The claim directory; without it: $CLAIM_DIR, else /run/lock/claim-UID or /tmp/claim-UID' -r -f -a "(__fish_complete_directories)"
complete -c claim -l events -d 'Append one line of JSON to FILE for everything that happens to this claim' -r -F
complete -c claim -l etcd -d 'Claim across hosts, through etcd at ENDPOINTS (as `host:port`, `https://host:port`; comma-separated). CLAIM_ETCD in the environment switches this on as well' -r
complete -c claim -l ttl -d 'Across hosts: how long a silent holder stays the holder; at least 1s. Without it: 10s' -r
complete -c claim -l endpoints -d 'Where etcd is, if --etcd does not say so; without it: $CLAIM_ETCD, else $ETCDCTL_ENDPOINTS, else 127.0.0.1:2379' -r
complete -c claim -l user -d 'The user of etcd\'s, as NAME or NAME:PASSWORD; without it: $ETCDCTL_USER. A password on a command line can be seen by others: better --password-file, or $ETCDCTL_PASSWORD' -r
complete -c claim -l password-file -d 'The file that the user\'s password is in' -r -F
complete -c claim -l cacert -d 'The certificate of the authority that etcd\'s is to be signed by; without it: $ETCDCTL_CACERT, else the system\'s' -r -F
complete -c claim -l cert -d 'Our own certificate; without it: $ETCDCTL_CERT' -r -F
complete -c claim -l key -d 'The key of our own certificate; without it: $ETCDCTL_KEY' -r -F
complete -c claim -l dial-timeout -d 'How long the first session may take to come about; without it: $ETCDCTL_DIAL_TIMEOUT, else 5s' -r
complete -c claim -l etcd-prefix -d 'Where in etcd the claims are; without it: /claim/v1/' -r
complete -c claim -s c -d 'Run SHELL LINE by $SHELL -c (/bin/sh where unset)' -r
complete -c claim -l pid -d 'The process that --acquire and --release are for' -r
complete -c claim -s n -l nonblock -d 'Try once'
complete -c claim -s F -l exec -l no-fork -d 'Replace claim by COMMAND; the claim lives as long as that process'
complete -c claim -l tree -d 'Hold until every process that COMMAND started has ended, daemons too'
complete -c claim -l spread -d 'At most one slot per host, so that N slots are N hosts; without --etcd: at most one'
complete -c claim -s v -l verbose -d 'Say on standard error what happens'
complete -c claim -s q -l quiet -d 'Say nothing but errors'
complete -c claim -l acquire -d 'Hold NAME for another process (a script: `--pid $$`), print the fence, and return'
complete -c claim -l release -d 'Give up what PID holds, or with --force what anybody holds'
complete -c claim -l who -d 'Show who holds and who waits'
complete -c claim -l available -d 'Exit 0 if NAME could be had now, 1 if not'
complete -c claim -l check -d 'Inside COMMAND: exit 0 if the claim I run under is still mine, 1 if not'
complete -c claim -l master -d 'Make a private claim directory, export it as CLAIM_DIR, run COMMAND, and remove it'
complete -c claim -l force -d 'With --release: whoever holds it, living or not; also removes records that cannot be read'
complete -c claim -l json -d 'With --who: one JSON object a line'
complete -c claim -l watch -d 'With --who: go on until interrupted. With --json: a line whenever something changes'
complete -c claim -s x -l exclusive -d 'Accepted, as flock(1) has it: a claim is exclusive anyway'
complete -c claim -s o -l close -d 'Accepted, as flock(1) has it: COMMAND inherits no descriptor anyway'
complete -c claim -s h -l help -d 'Print help (see more with \'--help\')'
complete -c claim -s V -l version -d 'Print version'
