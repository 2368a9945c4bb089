#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "bindings/transport_capsule.hpp"
#include "casync/types.hpp"
#include "common/boot_id.hpp"
#include "transport/tcp/tcp_transport.hpp"

namespace py = pybind11;

namespace casync {
namespace {

py::capsule connect(Rank rank, const std::vector<std::vector<int>>& sockets, const std::vector<int>& hosts,
                    int session_tag, double timeout_s) {
  std::vector<transport::PeerSockets> peers;
  for (const std::vector<int>& of_peer : sockets) {
    transport::PeerSockets& peer = peers.emplace_back();
    if (of_peer.empty()) continue;
    peer.heads = of_peer.front();
    peer.bodies.assign(of_peer.begin() + 1, of_peer.end());
  }
  std::unique_ptr<Transport> transport;
  {
    const py::gil_scoped_release release;
    transport = transport::connect_tcp(rank, std::move(peers), hosts, session_tag, true,
                                       static_cast<Nanoseconds>(timeout_s * 1e9));
  }
  return capsule_of(std::move(transport));
}

}  // namespace

void bind_tcp(py::module_& module) {
  using namespace py::literals;
  module.def(
      "boot_id", [] { return std::string(boot_id()); }, "Of this machine, since it was started; empty if unknown.");
  module.def(
      "connect_tcp", &connect, "rank"_a, "sockets"_a, "hosts"_a, "session_tag"_a, "timeout_s"_a,
      "A transport as a capsule 'casync.Transport'. Per rank the descriptors of its sockets, which it takes: one "
      "for heads, then one or more for bodies; none for `rank` itself. Collective over them.");
}

}  // namespace casync
