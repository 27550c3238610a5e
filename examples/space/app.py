"""The studio as a Space of Hugging Face: visitors see the models of the package, and open no files."""

from thetaleap.integrations.studio.allowed import Allowed
from thetaleap.integrations.studio.serving import serve

if __name__ == "__main__":
    serve(Allowed(), host="0.0.0.0", port=7860)
