"""`python -I -S casync/launcher/rank/__main__.py -- COMMAND ...`: what is started on each rank."""

import os.path
import sys

if __name__ == "__main__":
    # Behind the standard library, so that nothing which lies beside casync hides a module of it.
    sys.path.append(os.path.normpath(os.path.join(__file__, "../../../..")))

    from casync.launcher.rank.supervisor import main

    sys.exit(main(sys.argv[1:]))
