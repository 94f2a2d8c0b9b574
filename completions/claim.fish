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
complete -c claim -s c -d 'Run SHELL LINE by $SHELL -c (/bin/sh where unset)' -r
complete -c claim -l pid -d 'The process that --acquire and --release are for' -r
complete -c claim -s n -l nonblock -d 'Try once'
complete -c claim -s F -l exec -l no-fork -d 'Replace claim by COMMAND; the claim lives as long as that process'
complete -c claim -l tree -d 'Hold until every process that COMMAND started has ended, daemons too'
complete -c claim -l spread -d 'At most one slot for this host'
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
