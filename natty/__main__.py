from natty.cli import main

main()
