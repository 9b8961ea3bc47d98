"""Summaries for TensorBoard's hparams view, made with its own protocol buffers and without tensorflow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any


def start(values: Mapping[str, Any], metric: str) -> list[Any]:
    """Returns the summaries that a run writes at its start: the columns of the view and the run's own values.

    Args:
        values: by name. None leaves the cell empty. Values that are neither numbers nor bools are written as text.
        metric: tag of the scalar that the view shows beside them.
    """
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    session = plugin_data_pb2.SessionStartInfo(start_time_secs=time.time())
    infos = []
    for name, value in values.items():
        if value is None:
            kind = api_pb2.DATA_TYPE_UNSET
        elif isinstance(value, bool):
            kind, session.hparams[name].bool_value = api_pb2.DATA_TYPE_BOOL, value
        elif isinstance(value, (int, float)):
            kind, session.hparams[name].number_value = api_pb2.DATA_TYPE_FLOAT64, value
        else:
            kind, session.hparams[name].string_value = api_pb2.DATA_TYPE_STRING, str(value)
        infos.append(api_pb2.HParamInfo(name=name, type=kind))
    metrics = [api_pb2.MetricInfo(name=api_pb2.MetricName(tag=metric))]
    return [
        _summary(metadata.EXPERIMENT_TAG, experiment=api_pb2.Experiment(hparam_infos=infos, metric_infos=metrics)),
        _summary(metadata.SESSION_START_INFO_TAG, session_start_info=session),
    ]


def end() -> Any:
    """Returns the summary that a run writes when it has finished."""
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    session = plugin_data_pb2.SessionEndInfo(status=api_pb2.STATUS_SUCCESS, end_time_secs=time.time())
    return _summary(metadata.SESSION_END_INFO_TAG, session_end_info=session)


def _summary(tag: str, **record: Any) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    about = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(**record))
    return Summary(value=[Summary.Value(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)])
