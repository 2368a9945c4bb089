#include "cuda/module.hpp"

namespace casync::cuda {

Module::Module(const Device& device, const std::string& code) : driver_(device.driver()) {
  CASYNC_CUDA(driver_, cuModuleLoadData, &module_, code.c_str());
}

Module::~Module() { driver_.cuModuleUnload(module_); }

Function Module::function(const char* name) const {
  Function found = nullptr;
  CASYNC_CUDA(driver_, cuModuleGetFunction, &found, module_, name);
  return found;
}

int most_blocks(const Device& device, Function function, int threads) {
  const Driver& driver = device.driver();
  int processors = 0;
  int blocks = 0;
  CASYNC_CUDA(driver, cuDeviceGetAttribute, &processors, kProcessors, device.number());
  CASYNC_CUDA(driver, cuOccupancyMaxActiveBlocksPerMultiprocessor, &blocks, function, threads, 0);
  return blocks * processors;
}

void launch(const Driver& driver, Function function, const Grid& grid, void** arguments, Stream stream) {
  const auto blocks = static_cast<unsigned>(grid.blocks);
  const auto teams = static_cast<unsigned>(grid.teams);
  const auto threads = static_cast<unsigned>(grid.threads);
  if (grid.cooperative) {
    CASYNC_CUDA(driver, cuLaunchCooperativeKernel, function, blocks, teams, 1, threads, 1, 1, 0, stream, arguments);
  } else {
    CASYNC_CUDA(driver, cuLaunchKernel, function, blocks, teams, 1, threads, 1, 1, 0, stream, arguments, nullptr);
  }
}

}  // namespace casync::cuda
