"""SmolLM2-135M-Instruct answers a prompt through generated code, with a picture of what ran."""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fetch_models import fetch

PROMPT = "What is the capital of France, and what is it known for?"


def main() -> int:
    """Fetch the model, then run `cke run` as a user would, showing the command."""
    print("==> fetching SmolLM2-135M-Instruct (93 MB, once)", flush=True)
    model = fetch("smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    arguments = ["run", "--model", str(model), "--chat", "--prompt", PROMPT, "--generate", "64"]
    print(f'==> cke run --model {model.name} --chat --prompt "{PROMPT}" --generate 64', flush=True)
    return subprocess.call([sys.executable, "-m", "cke", *arguments])


if __name__ == "__main__":
    sys.exit(main())
