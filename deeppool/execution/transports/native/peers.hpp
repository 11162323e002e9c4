// Connections of one rank to all others: messages of deeppool/execution/transports/tcp.py, read and written.
#pragma once
#include <arpa/inet.h>
#include <endian.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "participant.hpp"

namespace deeppool {

constexpr size_t kHeader = 18;         // kind, whether there is a total, round, dimension: "!BBqq"
constexpr size_t kPiece = 1 << 18;     // bytes to read at once
constexpr size_t kCoalesced = 1 << 14; // up to this size a total is copied behind its header, and sent with it

class Peer {
 public:
  Peer(int fd, int epoll, int32_t rank) : fd_(fd), epoll_(epoll), rank_(rank) {
    epoll_event event{EPOLLIN, {}};
    event.data.u32 = static_cast<uint32_t>(rank);
    epoll_ctl(epoll_, EPOLL_CTL_ADD, fd_, &event);
  }
  ~Peer() { close(fd_); }
  Peer(const Peer&) = delete;

  bool open = true;
  bool ended = false;  // in order: it has said so

  // Ends the connection on both sides; reading it then shows its end.
  void end() {
    queue_.clear();
    shutdown(fd_, SHUT_RDWR);
  }

  bool has_to_send() const { return open && !queue_.empty(); }

  void post(const Message& message) {
    if (!open) return;
    auto head = std::make_shared<std::vector<char>>(kHeader);
    const Bytes& total = message.contribution.total;
    (*head)[0] = static_cast<char>(message.kind);
    (*head)[1] = total ? 1 : 0;
    uint64_t numbers[] = {htobe64(static_cast<uint64_t>(message.number)),
                          htobe64(static_cast<uint64_t>(message.dimension))};
    std::memcpy(head->data() + 2, numbers, sizeof numbers);
    if (message.kind == Kind::data)
      for (const Numbers* each : {&message.contribution.counts, &message.contribution.finished}) {
        auto bytes = reinterpret_cast<const char*>(each->data());
        head->insert(head->end(), bytes, bytes + each->size() * sizeof(int64_t));
      }
    bool joined = total && total->size() <= kCoalesced;
    if (joined) head->insert(head->end(), total->begin(), total->end());
    queue_.push_back({head, 0});
    if (total && !joined) queue_.push_back({total, 0});
  }

  // Sends what the system takes; the rest when it can.
  void flush() {
    while (open && !queue_.empty()) {
      auto& [bytes, offset] = queue_.front();
      ssize_t sent = send(fd_, bytes->data() + offset, bytes->size() - offset, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (sent < 0) end();  // part of a message may be sent: nothing can follow it
      else if ((offset += static_cast<size_t>(sent)) == bytes->size()) queue_.pop_front();
    }
    bool wanted = open && !queue_.empty();
    if (wanted == writing_) return;
    writing_ = wanted;
    epoll_event event{EPOLLIN | (wanted ? uint32_t{EPOLLOUT} : 0u), {}};
    event.data.u32 = static_cast<uint32_t>(rank_);
    epoll_ctl(epoll_, EPOLL_CTL_MOD, fd_, &event);
  }

  // Reads what has come, and calls back with each complete message; clears ``open`` at the connection's end.
  template <typename OnMessage>
  void read(const Rule& rule, const Participant& participant, OnMessage on_message) {
    static thread_local std::vector<char> piece(kPiece);
    ssize_t count = recv(fd_, piece.data(), piece.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (count <= 0) {
      open = false;
      queue_.clear();
      epoll_ctl(epoll_, EPOLL_CTL_DEL, fd_, nullptr);
      return;
    }
    const char* next = piece.data();
    const char* end = next + count;
    while (next < end || have_ == need_) {
      size_t taken = std::min(static_cast<size_t>(end - next), need_ - have_);
      if (taken) std::memcpy(target() + have_, next, taken);
      next += taken;
      if ((have_ += taken) < need_) return;
      if (advance(rule, participant)) on_message(std::move(message_));
    }
  }

 private:
  enum class Part { header, numbers, total };

  char* target() { return part_ == Part::total ? message_.contribution.total->data() : buffer_.data(); }

  // Goes on to the next part of a message, whose bytes are there; returns whether it is complete.
  bool advance(const Rule& rule, const Participant& participant) {
    have_ = 0;
    if (part_ == Part::header) {
      uint64_t numbers[2];
      std::memcpy(numbers, buffer_.data() + 2, sizeof numbers);
      message_ = {static_cast<Kind>(buffer_[0]), static_cast<int64_t>(be64toh(numbers[0])),
                  static_cast<int64_t>(be64toh(numbers[1]))};
      has_total_ = buffer_[1];
      if (message_.kind == Kind::data) {
        expect(Part::numbers, 2 * sizeof(int64_t) * static_cast<size_t>(rule.ranks));
        return false;
      }
    } else if (part_ == Part::numbers) {
      auto numbers = reinterpret_cast<const int64_t*>(buffer_.data());
      message_.contribution.counts.assign(numbers, numbers + rule.ranks);
      message_.contribution.finished.assign(numbers + rule.ranks, numbers + 2 * rule.ranks);
      size_t bytes = participant.bytes_of(message_.dimension);
      if (bytes == kNoChunk) {
        message_.kind = Kind::unknown;
      } else if (has_total_) {
        message_.contribution.total = std::make_shared<std::vector<char>>(bytes);
        expect(Part::total, bytes);
        return false;
      }
    }
    expect(Part::header, kHeader);
    return true;
  }

  void expect(Part part, size_t bytes) {
    part_ = part;
    need_ = bytes;
    if (part != Part::total && buffer_.size() < bytes) buffer_.resize(bytes);
  }

  int fd_, epoll_;
  int32_t rank_;
  bool writing_ = false;
  std::deque<std::pair<Bytes, size_t>> queue_;
  Part part_ = Part::header;
  std::vector<char> buffer_ = std::vector<char>(kHeader);
  size_t have_ = 0, need_ = kHeader;
  bool has_total_ = false;
  Message message_;
};

}  // namespace deeppool
