from capture.cli import main

main()
