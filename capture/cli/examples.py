"""Examples of the commands of `capture`, one a line. The help of a command shows its own; a test parses each."""

EXAMPLES = """
capture run --config capture.toml
capture run --stream ORDERS --store s3://lake/orders --decoder json
capture run --config capture.toml --log-level info --log-format json
capture backfill ORDERS --store s3://lake/orders --workers 4
capture status --config capture.toml
capture status --config capture.toml --json
capture serve --config capture.toml --cert page.pem --key page-key.pem --token-file tokens
capture serve --config capture.toml --plain-http
capture sweep --config capture.toml --dry-run
capture compact --config capture.toml --all
capture compact --config capture.toml --dry-run
capture upgrade --config capture.toml --dry-run
capture verify --config capture.toml
capture verify --config capture.toml --quick --nagios
capture purge --config capture.toml --captured --keep-for 7d --dry-run
capture restore s3://lake/orders --as ORDERS_AGAIN --detached --dry-run
capture restore s3://lake/orders --stream ORDERS --at 2026-11-21T06:00:00Z
capture head --config capture.toml
capture ls --config capture.toml
capture cat s3://lake/orders --since 1h --subject 'orders.eu.>'
capture cat --config capture.toml --follow
capture sql --config capture.toml 'SELECT subject, COUNT(*) FROM messages GROUP BY subject'
capture sql --config capture.toml --live --json 'SELECT MAX(sequence) FROM messages'
capture demo --rows 20000 --keep
capture doctor --config capture.toml
capture permissions node --config capture.toml
capture import backup s3://lake/orders
capture export s3://lake/orders backup
capture config show --config capture.toml
capture config check --config capture.toml
capture catalog serve --config capture.toml --cert catalog.pem --key catalog-key.pem --token-file tokens
capture catalog show --config capture.toml
capture catalog register --config capture.toml
capture catalog remove --config capture.toml
capture pipeline ls --config capture.toml
capture pipeline show totals --config capture.toml
capture pipeline plan totals --config capture.toml
capture pipeline history totals --config capture.toml
capture pipeline check totals --config capture.toml
capture pipeline lineage --config capture.toml
capture pipeline run totals --config capture.toml --wait 10m
capture pipeline rerun totals --config capture.toml --from 2026-11-21T06:00:00Z
capture pipeline pause totals --config capture.toml
capture pipeline resume totals --config capture.toml
capture keys new 2026-11
capture keys public --config capture.toml
"""
