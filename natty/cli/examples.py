"""Examples of the commands of `natty`, one a line. The help of a command shows its own; a test parses each."""

EXAMPLES = """
natty doctor
natty doctor --context production --json
natty pub orders.eu '{"total": 12}' --jetstream --msg-id order-1
natty pub reminders.8 'call back' --after 2h
natty request prices.get EUR --timeout 2s
natty sub 'orders.>' --count 10
natty sub 'orders.>' --stream ORDERS --json
natty bench --msgs 10000 --size 512
natty server
natty server --cluster 3 --store nats-data
natty tls init certificates --host nats.example.org
natty dlq ls --stream ORDERS
natty dlq show 17
natty dlq retry --stream ORDERS --dry-run
natty dlq retry --consumer mailer --rate 10
natty dlq purge --stream ORDERS --dry-run
natty kv add settings --history 5 --ttl 1h
natty kv ls
natty kv keys settings
natty kv get settings mail.rate
natty kv get settings mail.rate --raw
natty kv put settings mail.rate 20
natty kv create settings mail.rate 20 --ttl 1h
natty kv update settings mail.rate 30 --revision 7
natty kv revert settings mail.rate 5
natty kv rm settings mail.rate
natty kv del settings mail.rate
natty kv purge settings mail.rate
natty kv history settings mail.rate
natty kv watch settings 'mail.>'
natty kv status settings
natty group static ls ORDERS
natty group static info ORDERS billing
natty group static upgrade ORDERS billing
natty group static rm ORDERS billing
natty group static member-info ORDERS billing node-1
natty group static step-down ORDERS billing node-1
natty group static consume ORDERS billing node-1
natty group static prompt
natty group static lag ORDERS billing
natty group static watch ORDERS billing --every 5s
natty group static create balanced ORDERS billing 10 node-1 node-2
natty group static create mapped ORDERS billing 4 node-1:0,1 node-2:2,3
natty group elastic ls ORDERS
natty group elastic info ORDERS billing
natty group elastic upgrade ORDERS billing
natty group elastic rm ORDERS billing
natty group elastic member-info ORDERS billing node-1
natty group elastic step-down ORDERS billing node-1
natty group elastic create ORDERS billing 10 --filter 'orders.*:1'
natty group elastic add ORDERS billing node-1 node-2
natty group elastic drop ORDERS billing node-2
natty group elastic create-mapping ORDERS billing node-1:0,1 node-2:2,3
natty group elastic delete-mapping ORDERS billing
natty group elastic consume ORDERS billing node-1
natty group elastic prompt
natty group elastic lag ORDERS billing
natty group elastic watch ORDERS billing --every 5s
natty group elastic auto ORDERS billing
natty leader ls
natty leader show nightly --terms 20
natty leader watch nightly
natty leader step-down nightly --to node-2
natty leader run nightly -- ./report --all
natty leader run nightly --cron '0 3 * * *' --timezone Europe/Berlin -- ./report
natty stream ls --subject 'orders.>'
natty stream info ORDERS --state
natty stream report --messages
natty stream add ORDERS --subjects 'orders.>' --max-age 7d --defaults
natty stream edit ORDERS --max-age 30d --dry-run
natty stream copy ORDERS ORDERS_TEST --subjects 'test.orders.>'
natty stream rm ORDERS
natty stream purge ORDERS --subject orders.eu --keep 100
natty stream rm-msg ORDERS 17
natty stream get ORDERS 17
natty stream get ORDERS --last-for orders.eu --raw
natty stream plan --file streams.toml
natty stream apply --file streams.toml
natty stream template add orders --subject 'orders.*' --stream 'ORDERS_{1}'
natty stream template edit orders --max-streams 200
natty stream template ls
natty stream template info orders
natty stream template rm orders
natty stream template run --node-name node-1
natty stream mirror add ORDERS_DR ORDERS --domain hub
natty stream mirror gather ALL_ORDERS ORDERS_EU ORDERS_US
natty stream mirror ls
natty stream mirror info ORDERS_DR
natty stream mirror promote ORDERS_DR
natty schedule ls ORDERS
natty schedule add nightly reports.build '{}' --cron '0 3 * * *' --timezone Europe/Berlin
natty schedule show REPORTS nightly
natty schedule rm REPORTS nightly
natty consumer next ORDERS mailer --count 5 --ack
natty consumer next ORDERS mailer --nak --delay 30s
natty consumer add ORDERS mailer --filter 'orders.eu.>' --max-deliver 5 --defaults
natty consumer edit ORDERS mailer --max-pending 100 --dry-run
natty consumer ls ORDERS
natty consumer info ORDERS mailer
natty consumer report ORDERS
natty consumer rm ORDERS mailer
natty consumer pause ORDERS mailer 1h30m
natty consumer resume ORDERS mailer
natty permissions publisher ORDERS 'orders.>'
natty permissions service ORDERS mailer --setup
natty permissions candidate nightly
natty permissions bucket settings --read-only
natty permissions administrator
natty account info
"""
