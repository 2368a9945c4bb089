#include "bindings/bindings.hpp"
#include "casync/metrics.hpp"

namespace py = pybind11;

namespace casync {
namespace {

using namespace py::literals;

double seconds(Nanoseconds time) { return static_cast<double>(time) / 1e9; }

py::dict to_dict(const Histogram& histogram) {
  py::tuple bounds(Histogram::kBounds);
  py::tuple counts(Histogram::kBounds + 1);
  for (std::size_t i = 0; i < Histogram::kBounds; ++i) bounds[i] = seconds(Histogram::bound(i));
  for (std::size_t i = 0; i < histogram.counts.size(); ++i) counts[i] = histogram.counts[i];
  return py::dict("bounds"_a = bounds, "counts"_a = counts, "sum"_a = seconds(histogram.sum));
}

py::dict to_dict(const Work& work) { return py::dict("tasks"_a = work.tasks, "seconds"_a = seconds(work.time)); }

/// By peer; of ranks with which there was none there is nothing.
py::dict to_dict(const std::vector<Traffic>& traffic) {
  py::dict by_peer;
  for (std::size_t peer = 0; peer < traffic.size(); ++peer) {
    const Traffic& one = traffic[peer];
    if (one.messages == 0) continue;
    by_peer[py::int_(peer)] =
        py::dict("messages"_a = one.messages, "raw_bytes"_a = one.raw_bytes, "wire_bytes"_a = one.wire_bytes);
  }
  return by_peer;
}

py::dict to_dict(const CodecMetrics& codec) {
  return py::dict("operations"_a = codec.operations, "tensor_bytes"_a = codec.tensor_bytes,
                  "encode"_a = to_dict(codec.encode), "merge"_a = to_dict(codec.merge),
                  "decode"_a = to_dict(codec.decode), "sent"_a = to_dict(codec.sent),
                  "received"_a = to_dict(codec.received));
}

py::dict to_dict(const GradientMetrics& gradient) {
  return py::dict("operations"_a = gradient.operations, "seconds"_a = seconds(gradient.time),
                  "predicted_seconds"_a = seconds(gradient.predicted), "ready_seconds"_a = seconds(gradient.ready),
                  "encoded_bytes"_a = gradient.encoded_bytes, "payload_bytes"_a = gradient.payload_bytes,
                  "plan_seconds"_a = seconds(gradient.plan_time));
}

}  // namespace

py::dict to_dict(const Metrics& metrics) {
  py::dict codecs;
  for (const CodecMetrics& codec : metrics.codecs) codecs[py::str(codec.codec)] = to_dict(codec);
  py::dict gradients;
  for (const GradientMetrics& gradient : metrics.gradients) gradients[py::str(gradient.tensor)] = to_dict(gradient);
  py::list lateness;
  for (const Lateness& late : metrics.lateness) {
    lateness.append(py::dict("reports"_a = late.reports, "last"_a = late.last, "seconds"_a = seconds(late.time)));
  }
  const QueueLengths& queues = metrics.queues;
  const PoolMetrics& pool = metrics.pool;
  const TransportCounters& transport = metrics.transport;
  return py::dict("steps"_a = metrics.steps, "step_seconds"_a = to_dict(metrics.step_time),
                  "exposed_seconds"_a = to_dict(metrics.exposed_time), "waited_seconds"_a = seconds(metrics.waited),
                  "failed_operations"_a = metrics.failed_operations, "codecs"_a = codecs, "gradients"_a = gradients,
                  "queues"_a = py::dict("operations"_a = queues.operations, "partitions"_a = queues.partitions,
                                        "tasks"_a = queues.tasks, "sends"_a = queues.sends,
                                        "sends_flowing"_a = queues.sends_flowing),
                  "pool"_a = py::dict("capacity_bytes"_a = pool.capacity, "used_bytes"_a = pool.used,
                                      "peak_bytes"_a = pool.peak, "held_bytes"_a = pool.held),
                  "transport"_a = py::dict(
                      "sent_bytes"_a = transport.sent_bytes, "received_bytes"_a = transport.received_bytes,
                      "sent_messages"_a = transport.sent_messages, "received_messages"_a = transport.received_messages),
                  "lateness"_a = lateness);
}

}  // namespace casync
