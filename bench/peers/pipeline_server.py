"""transformers.pipeline behind FastAPI, as its users write it.

python -m bench.peers.pipeline_server MODEL PORT
"""

import os
import sys

os.environ |= {"USE_TF": "0", "USE_TORCH": "1", "TRANSFORMERS_VERBOSITY": "error"}


def main(model: str, port: int) -> None:
    """Serve until a signal."""
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel
    from transformers import pipeline

    classify = pipeline("text-classification", model=model, top_k=None)
    app = FastAPI()

    class Asked(BaseModel):
        texts: list[str]

    @app.post("/predict")
    def predict(request: Asked) -> list:
        return classify(request.texts)

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
