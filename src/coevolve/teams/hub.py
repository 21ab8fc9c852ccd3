"""A team on the Hugging Face hub: its exported folder, uploaded as one model."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

import httpx2
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, RepositoryNotFoundError

from coevolve.faults import one_line
from coevolve.models.names import check_repo
from coevolve.teams.model_card import CARD, common_licence
from coevolve.teams.team import described

_DENIED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


def push_to_hub(folder: str | Path, repo: str, *, private: bool = False, api: HfApi | None = None) -> str:
    """Upload a folder that ``coevolve export`` wrote to the model ``repo`` (OWNER/NAME) of the hub; return its address.

    The model is created if it does not exist. private: create it as a private one; an existing model stays as it is.
    api: another hub or token than those of `hf auth login`, HF_TOKEN and HF_ENDPOINT. A card without a licence gets
    that of the hub's models that the team started from, if they share one. Raises ValueError for a folder that is no
    team, an invalid name, and a token that is missing or lacks permission; OSError if the hub cannot be reached or
    fails.
    """
    folder, api = Path(folder), HfApi(token=True) if api is None else api
    described(folder)
    check_repo(repo)
    try:
        address = api.create_repo(repo, private=private, exist_ok=True)
        _name_licence(folder / CARD, api)
        api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Upload a team of Coevolve")
    except LocalTokenNotFoundError as error:
        raise ValueError("the hub wants a token; run `hf auth login`, or set HF_TOKEN") from error
    except HfHubHTTPError as error:
        if error.response.status_code in _DENIED:
            raise ValueError(f"the hub does not let this token write {repo}: {one_line(error)}") from error
        raise OSError(f"the hub did not take {repo}: {one_line(error)}") from error
    except httpx2.HTTPError as error:
        raise OSError(
            f"the hub at {api.endpoint} cannot be reached: {one_line(error)}; the team is in {folder}"
        ) from error
    return str(address)


def _name_licence(file: Path, api: HfApi) -> None:
    """Write the licence that the start models share into a card without one."""
    card = ModelCard.load(file)
    bases = card.data.base_model or []
    if card.data.license is None and (licence := common_licence(_licence(base, api) for base in bases)):
        card.data.license = licence
        card.save(file)


def _licence(base: str, api: HfApi) -> str | None:
    try:
        about = api.model_info(base).card_data
    except RepositoryNotFoundError:  # also for a private model that this token may not see
        return None
    return None if about is None else about.license
