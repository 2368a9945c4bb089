#include "cuda/facts.hpp"

#include "casync/error.hpp"
#include "cuda/driver.hpp"

namespace casync::cuda {
namespace {

std::string uuid_of(const Driver& driver, DeviceNumber device) {
  Uuid uuid{};
  CASYNC_CUDA(driver, cuDeviceGetUuid_v2, &uuid, device);
  std::string text = "GPU";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    constexpr const char* kDigits = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Facts::Device describe(const Driver& driver, DeviceNumber device) {
  Facts::Device found;
  char text[256] = "";
  CASYNC_CUDA(driver, cuDeviceGetName, text, static_cast<int>(sizeof text) - 1, device);
  found.name = text;
  found.uuid = uuid_of(driver, device);
  CASYNC_CUDA(driver, cuDeviceTotalMem_v2, &found.bytes, device);
  CASYNC_CUDA(driver, cuDeviceGetPCIBusId, text, static_cast<int>(sizeof text) - 1, device);
  found.pci = text;
  CASYNC_CUDA(driver, cuDeviceGetAttribute, &found.major, kMajor, device);
  CASYNC_CUDA(driver, cuDeviceGetAttribute, &found.minor, kMinor, device);
  return found;
}

}  // namespace

Facts facts() {
  const Driver& driver = cuda::driver();
  Facts found;
  CASYNC_CUDA(driver, cuDriverGetVersion, &found.version);
  int count = 0;
  CASYNC_CUDA(driver, cuDeviceGetCount, &count);
  std::vector<DeviceNumber> numbers(static_cast<std::size_t>(count));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    DeviceNumber& number = numbers[static_cast<std::size_t>(ordinal)];
    CASYNC_CUDA(driver, cuDeviceGet, &number, ordinal);
    found.devices.push_back(describe(driver, number));
  }
  for (int from = 0; from < count; ++from) {
    for (int to = 0; to < count; ++to) {
      if (from == to) continue;
      const DeviceNumber source = numbers[static_cast<std::size_t>(from)];
      const DeviceNumber target = numbers[static_cast<std::size_t>(to)];
      int reaches = 0;
      int rank = 0;
      CASYNC_CUDA(driver, cuDeviceGetP2PAttribute, &reaches, kAccessSupported, source, target);
      CASYNC_CUDA(driver, cuDeviceGetP2PAttribute, &rank, kPerformanceRank, source, target);
      found.links.push_back({from, to, reaches != 0, rank});
    }
  }
  return found;
}

std::string uuid_of(int ordinal) {
  const Driver& driver = cuda::driver();
  DeviceNumber number = 0;
  CASYNC_CUDA(driver, cuDeviceGet, &number, ordinal);
  return uuid_of(driver, number);
}

}  // namespace casync::cuda
