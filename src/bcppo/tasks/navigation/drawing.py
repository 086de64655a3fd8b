"""Drawing, and MuJoCo's first import: it looks for the OpenGL that `MUJOCO_GL` names, drawn with or not."""

from __future__ import annotations

import os

from bcppo.errors import BcppoError


def _no_opengl(error: Exception) -> BcppoError:
    return BcppoError(
        "Rendering needs OpenGL: on a machine without a screen install libosmesa6 (or an EGL driver) and set "
        f"MUJOCO_GL=osmesa (or egl) before Python starts; MUJOCO_GL is '{os.environ.get('MUJOCO_GL', '')}' now "
        f"({type(error).__name__}: {' '.join(str(error).split())})."
    )


try:
    import mujoco
except ModuleNotFoundError:
    raise
except Exception as error:
    raise _no_opengl(error) from error


def make_renderer(model: mujoco.MjModel, width: int, height: int):
    """MuJoCo's renderer for pictures of a size, in pixels."""
    try:
        return mujoco.Renderer(model, height, width)
    except Exception as error:
        raise _no_opengl(error) from error
