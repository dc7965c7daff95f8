"""`capture` whose leader of the pipelines looks often and tries again soon: many strikes are over in minutes."""

from capture.cli import main
from capture.node import campaign, pipeline_keeper
from capture.pipelines import due

if __name__ == "__main__":
    pipeline_keeper.LOOK, due.RETRY, due.LONGEST_RETRY = 0.3, 0.3, 2.0
    campaign.RETRY_DUTY = 0.5
    main()
